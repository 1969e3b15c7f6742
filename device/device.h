// Where a rank computes, and what this machine offers for it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

struct Device {
  enum class Kind : uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;  // of the GPU, as CUDA counts those that CUDA_VISIBLE_DEVICES leaves

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
  std::vector<bool> reaches = {};  // by device: its memory can be read directly
};

struct CudaStatus {
  int driver = 0, runtime = 0;  // 13000 is version 13.0; 0: none
  std::vector<Gpu> gpus = {};
  std::string problem = {};  // empty, or why GPUs cannot be used as they were meant to be, and what to do
  bool meant = false;        // there is a GPU, or one was asked for, and the problem is in the way
};

// What CUDA reads in the environment when it starts, unless the user set it; so this comes before everything
// else of CUDA, while no other thread reads the environment. A stream that waits for a word in memory holds
// up whoever shares its channel of the GPU, perhaps the one it waits for, so every process asks for as many
// channels as there are (32, CUDA_DEVICE_MAX_CONNECTIONS). A kernel that is loaded at its first launch waits
// for the whole GPU, so where ranks wait for each other on it, all are loaded at once (CUDA_MODULE_LOADING).
// What lists, allocates or enqueues on GPUs does the first part itself.
enum class RanksHere { one, several };
void set_cuda_environment(RanksHere ranks);
// Empty, or why the user's CUDA_DEVICE_MAX_CONNECTIONS may stop a rank for good.
std::string problem_of_channels();

// Looks; never throws. Free memory is asked for only on demand, because that starts CUDA on every GPU.
CudaStatus cuda_status(bool free_memory = false);
// One GPU, with its free memory; starts CUDA on it alone. Error(usage) where it cannot be used.
Gpu cuda_gpu(Device device);

// "auto" (a GPU where there is one, else the CPU), "cpu", "cuda" or "cuda:INDEX". Ranks of one host take its
// GPUs in turn. Throws Error(usage) with the fix when a GPU was asked for and cannot be used, and with "auto"
// when one was meant to be used.
Device choose_device(std::string_view wanted, int local_rank);
Device choose_device(std::string_view wanted, int local_rank, const CudaStatus& status);

}  // namespace cleave
