#include "device/gpu_problems.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace cleave {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
using Answer = DriverReport::Answer;

DriverReport report(int gpus, std::optional<std::string> visible = std::nullopt) {
  return {.answer = gpus > 0 ? Answer::gpus : Answer::no_gpu,
          .driver = 13000,
          .runtime = 13000,
          .gpus = gpus,
          .visible = std::move(visible)};
}

void expect_line(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(GpuProblem, IsEmptyIfTheNamedGpusExist) {
  for (const auto& [gpus, list] : {std::pair{8, "0,1,2"},
                                   {1, "3"},
                                   {2, "1,0"},
                                   {2, "GPU-8932f937,GPU-2"},
                                   {1, "MIG-c6d4f1ef"},
                                   {2, "0,1,-1,7"},
                                   {1, "0,-1"}})
    EXPECT_EQ(gpu_problem(report(gpus, list)).text, "") << list;
  EXPECT_EQ(gpu_problem(report(8)).text, "");
}

TEST(GpuProblem, AListThatHidesAllGpusIsIntended) {
  for (const Answer driver : {Answer::no_gpu, Answer::no_driver, Answer::old_driver})
    for (const char* list : {"", " ", "-1"}) {
      DriverReport r = report(0, list);
      r.answer = driver;
      const GpuProblem p = gpu_problem(r);
      expect_line(p.text, {"CUDA_VISIBLE_DEVICES", "hides every GPU", "unset it", "0,1"});
      EXPECT_FALSE(p.meant) << list;
    }
}

TEST(GpuProblem, AWrongListNamesTheEntryAndPreventsUse) {
  for (const auto& [gpus, list, entry] : {std::tuple{1, "0,9", "not '9'"},
                                          {0, "9", "not '9'"},
                                          {0, "all", "'all' names no GPU"},
                                          {2, "0,1,cuda:2", "'cuda:2' names no GPU"},
                                          {0, "0, 1", "' 1' names no GPU"},
                                          {0, "1,1", "names 1 twice"},
                                          {0, "GPU-1234", "not 'GPU-1234'"},
                                          {1, "0,,1", "'' names no GPU"}}) {
    const GpuProblem p = gpu_problem(report(gpus, list));
    expect_line(p.text, {"CUDA_VISIBLE_DEVICES", list, entry});
    EXPECT_TRUE(p.meant) << list;
  }
  const GpuProblem slices = gpu_problem(report(1, "MIG-a,MIG-b"));
  expect_line(slices.text, {"2 MIG slices",
                            "MIG slices, but a process can use only the first; give each process one slice"});
  EXPECT_TRUE(slices.meant);
}

TEST(GpuProblem, DriverProblemsNameBothVersionsAndTheAction) {
  DriverReport r{.answer = Answer::old_driver, .driver = 12040, .runtime = 13010};
  expect_line(gpu_problem(r).text, {"CUDA 12.4", "13.1", "install a newer driver"});
  EXPECT_TRUE(gpu_problem(r).meant);
  r = {.answer = Answer::no_driver, .runtime = 13010, .visible = "0"};
  expect_line(gpu_problem(r).text, {"no NVIDIA driver", "13.1"});
  EXPECT_FALSE(gpu_problem(r).meant);
  r = {.answer = Answer::other, .words = "another process holds the GPU exclusively"};
  EXPECT_EQ(gpu_problem(r).text, r.words);
  EXPECT_TRUE(gpu_problem(r).meant);
  expect_line(gpu_problem(report(0)).text, {"no GPU", "nvidia-smi", "--gpus all"});
  EXPECT_FALSE(gpu_problem(report(0)).meant);
}

// A meant GPU is an error also with "auto"; a machine without a GPU uses its CPU.
TEST(Device, DoesNotSilentlyFallBackToTheCpuIfAGpuWasMeant) {
  const CudaStatus none{.problem = "there is none"}, wrong{.problem = "the list is wrong", .meant = true};
  CudaStatus partly = wrong;
  partly.gpus.resize(1, {.name = "a GPU", .major = 9});
  EXPECT_EQ(choose_device("auto", 0, none), Device{});
  for (const CudaStatus* status : {&wrong, &static_cast<const CudaStatus&>(partly)}) {
    EXPECT_EQ(choose_device("cpu", 0, *status), Device{});
    for (const char* wanted : {"auto", "cuda", "cuda:0"}) try {
        choose_device(wanted, 0, *status);
        ADD_FAILURE() << wanted << " was accepted";
      } catch (const Error& e) {
        EXPECT_EQ(e.exit(), Exit::usage);
        expect_line(e.what(), {wanted, "the list is wrong", "--device cpu"});
      }
  }
  EXPECT_THROW(choose_device("cuda", 0, none), Error);
  CudaStatus two;
  two.gpus.resize(2, {.name = "a GPU", .major = 9});
  EXPECT_EQ(choose_device("auto", 3, two), Device::cuda(1));
}

TEST(GpuSlice, IsReported) {
  const Gpu whole{.name = "NVIDIA H200", .multiprocessors = 132, .memory_bytes = 140 * kGiB},
      slice{.name = "NVIDIA H200 MIG 1g.18gb", .multiprocessors = 16, .memory_bytes = 17 * kGiB};
  EXPECT_EQ(slice_note(whole, Device::cuda(0)), "");
  expect_line(slice_note(slice, Device::cuda(0)),
              {"cuda:0", "MIG 1g.18gb", "16 multiprocessors", "17.00 GiB"});
}

TEST(GpuProblems, NameGpusWithoutKernels) {
  CudaStatus status;
  for (const auto& [major, minor] : {std::pair{7, 5}, {8, 0}, {9, 0}, {12, 0}})
    status.gpus.push_back({.name = "Tesla T4", .major = major, .minor = minor});
  for (const int good : {1, 2, 3}) {
    EXPECT_EQ(capability_problem(status.gpus[size_t(good)], Device::cuda(good)), "");
    EXPECT_EQ(choose_device("auto", good, status), Device::cuda(good));
  }
  for (const char* wanted : {"auto", "cuda", "cuda:0"}) try {
      choose_device(wanted, 4, status);
      ADD_FAILURE() << wanted << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.exit(), Exit::usage);
      expect_line(e.what(),
                  {"cuda:0 (Tesla T4): not supported (got compute capability 7.5, expected 8.0 or newer)",
                   "CUDA_VISIBLE_DEVICES", "--device cpu"});
    }
}

TEST(GpuProblems, NameGpusWithoutFp8Products) {
  const auto gpu = [](int major, int minor) { return Gpu{.name = "a GPU", .major = major, .minor = minor}; };
  for (const auto& [major, minor] : {std::pair{8, 9}, {9, 0}, {10, 0}, {12, 0}})
    EXPECT_EQ(fp8_problem(gpu(major, minor), Device::cuda(1), false), "") << major << "." << minor;
  EXPECT_EQ(fp8_problem(gpu(9, 0), Device::cuda(1), true), "");
  expect_line(fp8_problem(gpu(8, 0), Device::cuda(1), false),
              {"cleave.fp8.scaling is delayed", "cuda:1 (a GPU)", "8.0", "8.9 or more", "set it to off"});
  expect_line(fp8_problem(gpu(8, 6), Device::cuda(1), true), {"is row", "8.6", "need 9.0", "set it to off"});
  expect_line(fp8_problem(gpu(10, 0), Device::cuda(1), true),
              {"is row", "10.0", "need 9.0", "set it to delayed"});
}

TEST(GpuMemory, UsedByOthersIsReportedBeforeAllocation) {
  Gpu gpu{.name = "NVIDIA H200", .memory_bytes = 140 * kGiB, .free_bytes = 60 * kGiB};
  EXPECT_EQ(memory_problem(gpu, Device::cuda(2), 59 * kGiB), "");
  EXPECT_EQ(memory_problem(gpu, Device::cuda(2), 60 * kGiB - kGiB), "");
  EXPECT_EQ(memory_problem(gpu, Device::cuda(2), 57 * kGiB, 2 * kGiB), "");
  expect_line(memory_problem(gpu, Device::cuda(2), 57 * kGiB, 2 * kGiB + 1),
              {"needs 57.00 GiB, CUDA 1.00 GiB and NCCL 2.00 GiB for itself"});
  expect_line(memory_problem(gpu, Device::cuda(2), 138 * kGiB, 2 * kGiB), {"--device_memory 140288MiB"});
  expect_line(memory_problem(gpu, Device::cuda(2), 60 * kGiB - kGiB + 1),
              {"cuda:2 (NVIDIA H200)", "60.00 GiB of its 140.00 GiB free", "others use the rest",
               "CUDA_VISIBLE_DEVICES"});
  gpu.free_bytes = 139 * kGiB;
  expect_line(memory_problem(gpu, Device::cuda(2), 150 * kGiB),
              {"150.00 GiB", "cleave plan", "--device_memory"});
}

}  // namespace
}  // namespace cleave
