#include "device/device.h"

#include <stdlib.h>

#include <charconv>

#include "core/error.h"
#include "device/gpu_problems.h"

namespace cleave {

std::string name_of(Device device) { return device.is_cuda() ? fmt::format("cuda:{}", device.index) : "cpu"; }

void set_cuda_environment(RanksHere ranks) {
  constexpr int kKeep = 0;  // keeps the user's value
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", kKeep);
  if (ranks == RanksHere::several) setenv("CUDA_MODULE_LOADING", "EAGER", kKeep);
}

std::string problem_of_channels() {
  constexpr int kStreams = 8;  // more than the streams of a rank
  const char* set = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (!set || atoi(set) >= kStreams) return {};
  return fmt::format(
      "CUDA_DEVICE_MAX_CONNECTIONS is {}: streams that share a GPU channel may wait for each other forever; "
      "unset it, or set it to 32",
      set);
}

Device choose_device(std::string_view wanted, int local_rank) {
  return choose_device(wanted, local_rank, wanted == "cpu" ? CudaStatus{} : cuda_status());
}

Device choose_device(std::string_view wanted, int local_rank, const CudaStatus& status) {
  if (wanted == "cpu") return {};
  const bool named = wanted.starts_with("cuda:");
  require(wanted == "auto" || wanted == "cuda" || named, Exit::usage,
          "--device {}: unknown device; use auto, cpu, cuda or cuda:INDEX", wanted);
  const int gpus = int(status.gpus.size());
  require(!status.meant && (gpus > 0 || wanted == "auto"), Exit::usage, "--device {}: {}; {}", wanted,
          status.problem, kUseTheCpu);
  if (gpus == 0) return {};
  int index = local_rank % gpus;
  const char* end = wanted.data() + wanted.size();
  const bool number = !named || std::from_chars(wanted.data() + 5, end, index).ptr == end;
  require(number && index >= 0 && index < gpus, Exit::usage, "--device {}: this machine's GPUs are 0 to {}",
          wanted, gpus - 1);
  const Device device = Device::cuda(index);
  const std::string problem = capability_problem(status.gpus[size_t(index)], device);
  require(problem.empty(), Exit::usage, "{}; {}", problem, kUseTheCpu);
  return device;
}

}  // namespace cleave
