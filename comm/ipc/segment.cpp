#include "comm/ipc/segment.h"

#include <utility>

#include "device/cuda/check.h"

namespace cleave::comm {

IpcMemory& IpcMemory::operator=(IpcMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(device_, other.device_);
  std::swap(own_, other.own_);
  return *this;
}

IpcMemory::~IpcMemory() {
  if (!data_) return;
  cudaSetDevice(device_);
  if (own_)
    cudaFree(data_);
  else
    cudaIpcCloseMemHandle(data_);
}

IpcMemory IpcMemory::make(int device, int64_t bytes) {
  IpcMemory memory;
  memory.device_ = device, memory.own_ = true;
  cuda_check(cudaSetDevice(device), "cudaSetDevice", device);
  void* data = nullptr;
  cuda_check(cudaMalloc(&data, size_t(bytes)), "cudaMalloc of memory for the other ranks", device);
  memory.data_ = static_cast<std::byte*>(data);
  return memory;
}

IpcMemory IpcMemory::open(int device, const cudaIpcMemHandle_t& handle) {
  IpcMemory memory;
  memory.device_ = device;
  cuda_check(cudaSetDevice(device), "cudaSetDevice", device);
  void* data = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) cudaGetLastError();
  require(error == cudaSuccess, Exit::usage,
          "cuda:{}: cannot open the memory of another rank: {} ({}); the GPUs lack peer access, or the "
          "processes are in containers without shared IPC",
          device, cudaGetErrorString(error), cudaGetErrorName(error));
  memory.data_ = static_cast<std::byte*>(data);
  return memory;
}

cudaIpcMemHandle_t IpcMemory::handle() const {
  cudaIpcMemHandle_t handle{};
  cuda_check(cudaIpcGetMemHandle(&handle, data_), "cudaIpcGetMemHandle", device_);
  return handle;
}

IpcWords& IpcWords::operator=(IpcWords&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(ranks_, other.ranks_);
  std::swap(there_, other.there_);
  return *this;
}

IpcWords::~IpcWords() {
  if (there_) cudaHostUnregister(memory_.data());
}

void IpcWords::leave() {
  there_ = nullptr;
  static_cast<void>(new SharedMemory(std::move(memory_)));  // never unmapped
}

size_t IpcWords::bytes_of(int ranks) { return size_t(round_up(int64_t(kLine) * ranks * (ranks + 1), 4096)); }

IpcWords IpcWords::make(int ranks) {
  IpcWords words;
  words.ranks_ = ranks;
  words.memory_ = SharedMemory::create(bytes_of(ranks));
  words.reach();
  return words;
}

IpcWords IpcWords::open(int ranks, int pid, int fd) {
  IpcWords words;
  words.ranks_ = ranks;
  words.memory_ = SharedMemory::open(pid, fd, bytes_of(ranks));
  words.reach();
  return words;
}

void IpcWords::reach() {
  constexpr unsigned kFlags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  int device = 0;
  cudaGetDevice(&device);
  cuda_check(cudaHostRegister(memory_.data(), memory_.bytes(), kFlags), "cudaHostRegister", device);
  void* there = memory_.data();
  cuda_check(cudaHostGetDevicePointer(&there, memory_.data(), 0), "cudaHostGetDevicePointer", device);
  there_ = static_cast<std::byte*>(there);
}

IpcWords::Word& IpcWords::word(int reader, int writer, IpcWord which) const {
  std::byte* line = memory_.data() + kLine * size_t(reader * ranks_ + writer);
  return reinterpret_cast<Word*>(line)[size_t(which)];
}

IpcCalls& IpcWords::calls(int reader, int writer) const {
  return *reinterpret_cast<IpcCalls*>(memory_.data() + kLine * size_t(reader * ranks_ + writer) + kCallsAt);
}

IpcWords::Word& IpcWords::closed(int rank) const { return word(ranks_, rank, IpcWord::ready); }

uint32_t* IpcWords::on_gpu(Word& word) const {
  return reinterpret_cast<uint32_t*>(there_ + (reinterpret_cast<std::byte*>(&word) - memory_.data()));
}

}  // namespace cleave::comm
