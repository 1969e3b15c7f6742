// Compute device of a rank, and the devices of this machine.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

struct Device {
  enum class Kind : uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;  // CUDA index of the GPU after CUDA_VISIBLE_DEVICES

  static Device cuda(int index) { return {Kind::cuda, index}; }
  bool is_cuda() const { return kind == Kind::cuda; }
  bool operator==(const Device&) const = default;
};

std::string name_of(Device device);  // "cpu", "cuda:0"

struct Gpu {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0, free_bytes = 0;
  std::vector<bool> reaches = {};  // by device: peer access to its memory
};

struct CudaStatus {
  int driver = 0, runtime = 0;  // 13000 is version 13.0; 0: none
  std::vector<Gpu> gpus = {};
  std::string problem = {};  // empty, or reason why GPUs do not work as intended, with an action
  bool meant = false;        // a GPU exists or was requested, and the problem prevents its use
};

// Sets the environment variables that CUDA reads at its start, unless the user set them. Must run before any
// other CUDA call, while no other thread reads the environment. CUDA_DEVICE_MAX_CONNECTIONS = 32, the
// maximum: a stream that waits for a memory word blocks all streams of its channel, perhaps the one that it
// waits for. CUDA_MODULE_LOADING = EAGER for several ranks: loading a kernel at its first launch waits for
// the whole GPU, which hangs if ranks wait for each other on it. Functions that list, allocate or enqueue on
// GPUs set the first variable themselves.
enum class RanksHere { one, several };
void set_cuda_environment(RanksHere ranks);
// Empty, or the reason why the user's CUDA_DEVICE_MAX_CONNECTIONS may hang a rank.
std::string problem_of_channels();

// Examines the machine; never throws. `free_memory` queries free memory, which starts CUDA on every GPU.
CudaStatus cuda_status(bool free_memory = false);
// Returns one GPU with its free memory; starts CUDA on this GPU only. Throws Error(usage) if it is unusable.
Gpu cuda_gpu(Device device);

// Chooses a device from "auto" (a GPU if the machine has one, else the CPU), "cpu", "cuda" or "cuda:INDEX".
// Ranks of a host use the GPUs that they see round-robin. Throws Error(usage) with an action if a requested
// GPU is unusable; with "auto", if CudaStatus::meant is set.
Device choose_device(std::string_view wanted, int local_rank);
Device choose_device(std::string_view wanted, int local_rank, const CudaStatus& status);

}  // namespace cleave
