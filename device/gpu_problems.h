// What is wrong with the GPUs of a machine, from what its driver and its environment say: pure functions, so
// that every answer can be tried without a GPU. Texts are one line: what was found, and what to do.
#pragma once
#include <optional>
#include <string>

#include "device/device.h"

namespace cleave {

// What the driver says before any GPU is used.
struct DriverReport {
  enum class Answer : uint8_t { gpus, no_driver, old_driver, no_gpu, other };
  Answer answer = Answer::gpus;
  int driver = 0, runtime = 0;              // as in CudaStatus
  int gpus = 0;                             // that it shows to this process
  std::string words = {};                   // of another error, and what to do about it
  std::optional<std::string> visible = {};  // CUDA_VISIBLE_DEVICES
};

// Empty, or why GPUs cannot be used as they were meant to be. `meant`: somebody has a GPU here and it does
// not work, or asked for others than there are, so that computing on the CPU instead would be a surprise.
struct GpuProblem {
  std::string text = {};
  bool meant = false;
};
GpuProblem gpu_problem(const DriverReport& report);

// A part of a GPU, to its owner a GPU of its own (MIG).
bool is_slice(const Gpu& gpu);
// Empty for a whole GPU; else what a rank has of it.
std::string slice_note(const Gpu& gpu, Device device);
// Why this rank of a job cannot use the GPU, which is a part, as `transport` wants (--gpu_transport).
std::string slice_problem(const Gpu& gpu, Device device, int ranks, std::string_view transport);

// Why its libraries have no products in FP8, with a scale for an operand or for each of its rows; empty where
// they have.
std::string fp8_problem(const Gpu& gpu, Device device, bool scales_of_rows);

// Why `needed` more bytes, with what CUDA takes for itself, are not free on the GPU.
std::string memory_problem(const Gpu& gpu, Device device, int64_t needed);

}  // namespace cleave
