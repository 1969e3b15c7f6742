// Diagnoses GPU problems from the reports of driver and environment. Pure functions, so every case can be
// tested without a GPU. Messages are one line with finding and action.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace cleave {

// Report of the driver before any GPU is used.
struct DriverReport {
  enum class Answer : uint8_t { gpus, no_driver, old_driver, no_gpu, other };
  Answer answer = Answer::gpus;
  int driver = 0, runtime = 0;              // as in CudaStatus
  int gpus = 0;                             // number visible to this process
  std::string words = {};                   // another error, with an action
  std::optional<std::string> visible = {};  // CUDA_VISIBLE_DEVICES
};

// Text is empty, or the reason why GPUs do not work as intended. `meant`: the machine has a GPU that does not
// work, or other GPUs were requested than exist, so computing on the CPU would be a surprise.
struct GpuProblem {
  std::string text = {};
  bool meant = false;
};
GpuProblem gpu_problem(const DriverReport& report);

// Advice at the end of messages about GPUs that do not work.
inline constexpr const char* kUseTheCpu =
    "or compute on the CPU with --device cpu (for a script: CUDA_VISIBLE_DEVICES=-1)";

// Entries of a CUDA_VISIBLE_DEVICES, and whether it hides every GPU.
std::vector<std::string> visible_entries(std::string_view list);
bool hides_every_gpu(std::string_view list);

// A GPU slice (MIG), which its owner sees as a GPU.
bool is_slice(const Gpu& gpu);
// Empty for a whole GPU; else describes the slice of a rank.
std::string slice_note(const Gpu& gpu, Device device);
// Returns why no kernel runs on the GPU; empty if they do.
std::string capability_problem(const Gpu& gpu, Device device);

// Returns why the GPU does not support FP8 products with a scale per operand or per row; empty if it does.
std::string fp8_problem(const Gpu& gpu, Device device, bool scales_of_rows);

// Memory of a GPU for CUDA's context, kernels and libraries: 602 MiB on an H100, rounded up.
inline constexpr int64_t kCudaReserve = int64_t{1} << 30;
// Returns why `needed` bytes plus CUDA's own memory and NCCL's are not free on the GPU; empty if they are.
std::string memory_problem(const Gpu& gpu, Device device, int64_t needed, int64_t nccl = 0);

}  // namespace cleave
