// Memory that processes of one host share: of a GPU, and words of the host that GPUs reach.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>

#include "comm/ipc/calls.h"
#include "comm/ipc/steps.h"
#include "comm/shm/shared_memory.h"

namespace cleave::comm {

// Memory of a GPU: this process's own, or what it opened of another's. Not counted, like the buffers inside
// NCCL.
class IpcMemory {
 public:
  IpcMemory() = default;
  IpcMemory(IpcMemory&& other) noexcept { *this = std::move(other); }
  IpcMemory& operator=(IpcMemory&& other) noexcept;
  ~IpcMemory();

  static IpcMemory make(int device, int64_t bytes);
  // Error(usage) where `device` cannot reach it.
  static IpcMemory open(int device, const cudaIpcMemHandle_t& handle);

  std::byte* data() const { return data_; }
  cudaIpcMemHandle_t handle() const;  // of own memory
  void leave() { data_ = nullptr; }   // to the end of the process: somebody may still use it

 private:
  std::byte* data_ = nullptr;
  int device_ = 0;
  bool own_ = false;
};

// The words and calls of all ranks of a group, in a copy for each reader, so that a rank that gives up may
// overwrite those that it waits for itself, and nobody else's.
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
  void leave();  // to the end of the process: a GPU may still use it

  Word& word(int reader, int writer, IpcWord which) const;
  IpcCalls& calls(int reader, int writer) const;
  Word& closed(int rank) const;  // not 0: this rank has closed what it opened of the others
  uint32_t* on_gpu(Word& word) const;

 private:
  static constexpr size_t kLine = 128, kCallsAt = 32;
  static_assert(kIpcWords * sizeof(Word) <= kCallsAt && kCallsAt + sizeof(IpcCalls) <= kLine);

  static size_t bytes_of(int ranks);
  void reach();

  SharedMemory memory_;
  int ranks_ = 0;
  std::byte* there_ = nullptr;  // the same memory as GPUs address it
};

}  // namespace cleave::comm
