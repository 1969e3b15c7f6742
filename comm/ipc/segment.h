// Memory shared by processes of one host: GPU memory, and words in host memory that GPUs can access.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>

#include "comm/ipc/calls.h"
#include "comm/ipc/collective_steps.h"
#include "comm/shm/shared_memory.h"

namespace cleave::comm {

// GPU memory, allocated by this process or opened from another. Not counted by Memory, like buffers of NCCL.
class IpcMemory {
 public:
  IpcMemory() = default;
  IpcMemory(IpcMemory&& other) noexcept { *this = std::move(other); }
  IpcMemory& operator=(IpcMemory&& other) noexcept;
  ~IpcMemory();

  static IpcMemory make(int device, int64_t bytes);
  // Throws Error(usage) if `device` cannot access it.
  static IpcMemory open(int device, const cudaIpcMemHandle_t& handle);

  std::byte* data() const { return data_; }
  cudaIpcMemHandle_t handle() const;  // valid for allocated memory only
  void leave() { data_ = nullptr; }   // keeps the memory until the process ends, for ranks that still use it

 private:
  std::byte* data_ = nullptr;
  int device_ = 0;
  bool own_ = false;
};

// Words and call records of all ranks of a group, with a separate copy per reader: a rank that gives up can
// overwrite the words that it waits for without affecting other ranks.
class IpcWords {
 public:
  using Word = std::atomic<uint32_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(uint32_t));

  IpcWords() = default;
  IpcWords(IpcWords&& other) noexcept { *this = std::move(other); }
  IpcWords& operator=(IpcWords&& other) noexcept;
  ~IpcWords();

  static IpcWords make(int ranks);
  static IpcWords open(int ranks, int pid, int fd);
  int fd() const { return memory_.fd(); }
  void leave();  // keeps the memory until the process ends, for a GPU that still uses it

  Word& word(int reader, int writer, IpcWord which) const;
  IpcCalls& calls(int reader, int writer) const;
  Word& closed(int rank) const;  // not 0 after this rank closed the memory of the others
  uint32_t* on_gpu(Word& word) const;

 private:
  static constexpr size_t kLine = 128, kCallsAt = 32;
  static_assert(kIpcWords * sizeof(Word) <= kCallsAt && kCallsAt + sizeof(IpcCalls) <= kLine);

  static size_t bytes_of(int ranks);
  void reach();

  SharedMemory memory_;
  int ranks_ = 0;
  std::byte* there_ = nullptr;  // address of the same memory on GPUs
};

}  // namespace cleave::comm
