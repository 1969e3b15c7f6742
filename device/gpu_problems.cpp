#include "device/gpu_problems.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/units.h"

namespace cleave {
namespace {

std::string version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}
bool is_identity(std::string_view text) { return text.starts_with("GPU-") || text.starts_with("MIG-"); }

constexpr const char* kForms =
    "numbers as nvidia-smi shows them, such as 0,1, or GPU-... and MIG-... identities";

GpuProblem problem_of_list(const std::string& list, int gpus) {
  const std::vector<std::string> entries = visible_entries(list);
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i] == "-1") return {};  // the end
    if (!is_number(entries[i]) && !is_identity(entries[i]))
      return {fmt::format("CUDA_VISIBLE_DEVICES is '{}', and '{}' names no GPU; give {}", list, entries[i],
                          kForms),
              true};
    if (std::find(entries.begin(), entries.begin() + long(i), entries[i]) != entries.begin() + long(i))
      return {fmt::format("CUDA_VISIBLE_DEVICES is '{}' and names {} twice; name each GPU once", list,
                          entries[i]),
              true};
  }
  const int named = int(std::find(entries.begin(), entries.end(), "-1") - entries.begin());
  if (gpus >= named) return {};
  // A process sees a single slice, even if the list names several.
  const bool slices =
      std::all_of(entries.begin(), entries.end(), [](const std::string& e) { return e.starts_with("MIG-"); });
  if (slices && gpus == 1)
    return {fmt::format("CUDA_VISIBLE_DEVICES names {} MIG slices, but a process can use only the first; "
                        "give each process one slice",
                        named),
            true};
  return {fmt::format("CUDA_VISIBLE_DEVICES is '{}', and the driver knows {} of these {} GPUs: not '{}'; "
                      "nvidia-smi -L lists them",
                      list, gpus, named, entries[size_t(gpus)]),
          true};
}

}  // namespace

// Entries of CUDA_VISIBLE_DEVICES. CUDA ends the list at the first unknown entry; users end it on purpose
// with a negative number.
std::vector<std::string> visible_entries(std::string_view list) {
  std::vector<std::string> out;
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    out.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return out;
}

bool hides_every_gpu(std::string_view list) {
  return list.find_first_not_of(' ') == std::string_view::npos || visible_entries(list)[0] == "-1";
}

GpuProblem gpu_problem(const DriverReport& r) {
  using Answer = DriverReport::Answer;
  if (r.visible && hides_every_gpu(*r.visible))  // also with a driver that does not work
    return {fmt::format("CUDA_VISIBLE_DEVICES is '{}', which hides every GPU; unset it, or name GPUs: {}",
                        *r.visible, kForms),
            false};
  switch (r.answer) {
    case Answer::no_driver:
      return {fmt::format("no NVIDIA driver found; install one for CUDA {} or newer", version(r.runtime)),
              false};
    case Answer::old_driver:
      return {fmt::format("the NVIDIA driver is for CUDA {} and this build needs {}; install a newer driver "
                          "(nvidia-smi shows it), or build with an older CUDA toolkit",
                          version(r.driver), version(r.runtime)),
              true};
    case Answer::other:
      return {r.words, true};
    case Answer::gpus:
    case Answer::no_gpu:
      break;
  }
  if (r.visible)
    if (GpuProblem of_list = problem_of_list(*r.visible, r.gpus); !of_list.text.empty()) return of_list;
  if (r.gpus > 0) return {};
  return {"the driver shows no GPU; look at nvidia-smi, and in a container at --gpus all", false};
}

bool is_slice(const Gpu& gpu) { return gpu.name.find(" MIG ") != std::string::npos; }

std::string slice_note(const Gpu& gpu, Device device) {
  if (!is_slice(gpu)) return {};
  return fmt::format("{} is a part of a GPU ({}): {} multiprocessors, {}", name_of(device), gpu.name,
                     gpu.multiprocessors, format_bytes(gpu.memory_bytes));
}

std::string capability_problem(const Gpu& gpu, Device device) {
  if (gpu.major >= 8) return {};
  return fmt::format(
      "{} ({}): not supported (got compute capability {}.{}, expected 8.0 or newer); choose another GPU with "
      "CUDA_VISIBLE_DEVICES",
      name_of(device), gpu.name, gpu.major, gpu.minor);
}

std::string fp8_problem(const Gpu& gpu, Device device, bool scales_of_rows) {
  const int capability = gpu.major * 10 + gpu.minor;
  if (scales_of_rows ? capability == 90 : capability >= 89) return {};
  return fmt::format(
      "cleave.fp8.scaling is {}, and {} ({}) has compute capability {}.{}: products in FP8 need {}; set it "
      "to {}",
      scales_of_rows ? "row" : "delayed", name_of(device), gpu.name, gpu.major, gpu.minor,
      scales_of_rows ? "9.0" : "8.9 or more", scales_of_rows && capability >= 89 ? "delayed" : "off");
}

std::string memory_problem(const Gpu& gpu, Device device, int64_t needed, int64_t nccl) {
  const int64_t reserve = kCudaReserve + nccl;
  if (needed + reserve <= gpu.free_bytes) return {};
  const std::string found = fmt::format("{} ({}) has {} of its {} free", name_of(device), gpu.name,
                                        format_bytes(gpu.free_bytes), format_bytes(gpu.memory_bytes));
  const std::string own =
      nccl > 0 ? fmt::format("{}, CUDA {} and NCCL {}", format_bytes(needed), format_bytes(kCudaReserve),
                             format_bytes(nccl))
               : fmt::format("{} and CUDA {}", format_bytes(needed), format_bytes(kCudaReserve));
  const std::string wanted = "this rank needs " + own + " for itself";
  if (needed + reserve > gpu.memory_bytes)
    return fmt::format("{}, and {}; `cleave plan` with --device_memory {}MiB suggests changes", found, wanted,
                       std::max<int64_t>(1, (gpu.memory_bytes - reserve) >> 20));
  return fmt::format(
      "{}: others use the rest (nvidia-smi names them), and {}; wait for them, or choose another "
      "GPU with CUDA_VISIBLE_DEVICES",
      found, wanted);
}

}  // namespace cleave
