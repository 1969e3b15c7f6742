// Memory functions of the CUDA runtime ("CUDA Runtime API", Memory Management, and API
// synchronization behavior). On request, calls that may wait for the whole GPU do: always if CUDA
// is known to, otherwise in a random half of the cases.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include "tests/cuda_interpreter/device_memory.h"
#include "tests/cuda_interpreter/runtime_calls.h"
#include "tests/cuda_interpreter/settings.h"

namespace interpreter {
namespace {

// Bytes of pageable memory that the driver stages without waiting.
constexpr size_t kStaged = 64 << 10;

// Returns true half of the time.
bool drawn() {
  static std::atomic<uint64_t> times{0};
  static const auto seed = uint64_t(setting("SEED", 1));
  return std::mt19937_64(seed * 1'000'003 + times++)() % 2 == 0;
}

void perhaps_wait_for_gpu() {
  if (drawn()) wait_for_gpu();
}

bool of_gpu(const void* p) {
  const auto* at = static_cast<const std::byte*>(p);
  return at >= device_memory().begin() && at < device_memory().begin() + DeviceMemory::kSpan;
}

bool of_nccl(const void* p) {
  const DeviceMemory::Piece* piece = device_memory().find(p, nullptr);
  return piece && piece->giver == DeviceMemory::Giver::nccl;
}

// Checks the bytes of a copy or fill: in host memory, or in a piece of a GPU's memory.
void check_bytes(const void* p, size_t bytes, const char* what) {
  const DeviceMemory& memory = device_memory();
  if ((of_gpu(p) || memory.find(p, nullptr)) && !memory.holds(p, bytes))
    throw Defect(std::string(what) + ": " + memory.problem(p, bytes));
}

// A copy from pageable host memory may read its source at once, before earlier work of its stream,
// or when the stream reaches it.
const void* source_of_copy(const void* from, size_t bytes, const Stream& s, std::vector<std::byte>& early) {
  const bool pageable = !of_gpu(from) && !device_memory().find(from, nullptr);
  if (!pageable || s.capture || !drawn()) return from;
  const auto* begin = static_cast<const std::byte*>(from);
  early.assign(begin, begin + bytes);
  return nullptr;
}

bool locks() {
  static const bool said = setting("LOCK", 1) != 0;
  return said;
}

// Recursive, because a call may make others.
std::recursive_mutex& driver() {
  static auto* const mutex = new std::recursive_mutex;  // threads call until the process ends
  return *mutex;
}

// Returns true if a copy returns only when it is complete.
bool blocks(const void* to, const void* from, size_t bytes) {
  const auto locked = [](const void* p) { return of_gpu(p) || device_memory().find(p, nullptr); };
  return !locked(to) || (!locked(from) && bytes > kStaged);
}

// Contents of a handle of shared memory.
struct Handle {
  int process, file;
  uint64_t offset, bytes;
};
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t));

}  // namespace

InDriver::InDriver() {
  if (locks()) driver().lock(), in_ = true;
}
void InDriver::leave() {
  if (std::exchange(in_, false)) driver().unlock();
}

void wait_for_gpu() {
  if (setting("WAITS", 0)) streams().finish_device(current_gpu);
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t s) {
  return guarded([&] {
    const bool wait = locks() && !stream_of(s)->capture && blocks(to, from, bytes);
    std::vector<std::byte> early;
    from = source_of_copy(from, bytes, *stream_of(s), early);
    streams().give(stream_of(s), {"a copy of " + std::to_string(bytes) + " bytes",
                                  [=](std::mt19937_64&) {
                                    check_bytes(to, bytes, "a copy writes");
                                    if (from) check_bytes(from, bytes, "a copy reads");
                                    std::memmove(to, from ? from : early.data(), bytes);
                                  },
                                  {},
                                  {},
                                  "copy"});
    if (wait) streams().finish(stream_of(s));
  });
}
cudaError_t fill(void* to, int value, size_t bytes, cudaStream_t s) {
  return guarded([&] {
    streams().give(stream_of(s), {"a fill of " + std::to_string(bytes) + " bytes",
                                  [=](std::mt19937_64&) {
                                    if (value == 0 && device_memory().zero(to, bytes)) return;
                                    check_bytes(to, bytes, "a fill writes");
                                    std::memset(to, value, bytes);
                                  },
                                  {},
                                  {},
                                  "fill"});
  });
}

}  // namespace interpreter

using namespace interpreter;

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) {
  CALL_OF_RUNTIME;
  perhaps_wait_for_gpu();
  *p = device_memory().allocate(current_gpu, bytes);
  return *p ? cudaSuccess : ended(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* p) {
  CALL_OF_RUNTIME;
  if (p) wait_for_gpu();
  if (of_nccl(p)) return refused("cudaFree of memory that ncclMemAlloc gave", cudaErrorInvalidValue);
  return !p || device_memory().free(p) ? cudaSuccess : ended(cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned int) {
  CALL_OF_RUNTIME;
  perhaps_wait_for_gpu();
  *p = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!*p) return ended(cudaErrorMemoryAllocation);
  constexpr size_t kFilled =
      1 << 20;  // programs use the beginning of larger memory, and the rest would take seconds
  std::memset(*p, 0xff, std::min(bytes, kFilled));
  device_memory().add(*p, bytes, "page-locked memory");
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  CALL_OF_RUNTIME;
  wait_for_gpu();
  if (p && !device_memory().remove(p)) return ended(cudaErrorInvalidValue);
  return std::free(p), cudaSuccess;
}
cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned int) {
  CALL_OF_RUNTIME;
  perhaps_wait_for_gpu();
  return device_memory().add(p, bytes, "registered memory"), cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  CALL_OF_RUNTIME;
  wait_for_gpu();
  return device_memory().remove(p) ? cudaSuccess : ended(cudaErrorInvalidValue);
}
cudaError_t cudaHostGetDevicePointer(void** there, void* here, unsigned int) {
  CALL_OF_RUNTIME;
  if (!device_memory().find(here, nullptr)) return ended(cudaErrorInvalidValue);
  return *there = here, cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  CALL_OF_RUNTIME;
  *total = device_memory().total(), *free = *total - device_memory().used(current_gpu);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  CALL_OF_RUNTIME;
  std::memset(a, 0, sizeof *a);
  const DeviceMemory::Piece* piece = device_memory().find(p, nullptr);
  a->type = !piece               ? cudaMemoryTypeUnregistered
            : piece->device >= 0 ? cudaMemoryTypeDevice
                                 : cudaMemoryTypeHost;
  a->device = piece && piece->device >= 0 ? piece->device : current_gpu;
  a->devicePointer = piece ? const_cast<void*>(p) : nullptr;
  a->hostPointer = piece && piece->device >= 0 ? nullptr : const_cast<void*>(p);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t s) {
  CALL_OF_RUNTIME;
  return copy(to, from, bytes, s);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  CALL_OF_RUNTIME;
  const cudaError_t error = copy(to, from, bytes, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t s) {
  CALL_OF_RUNTIME;
  return fill(to, value, bytes, s);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  CALL_OF_RUNTIME;
  return fill(to, value, bytes, nullptr);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* p) {
  CALL_OF_RUNTIME;
  if (of_nccl(p))
    return refused("cudaIpcGetMemHandle of memory that ncclMemAlloc gave", cudaErrorInvalidValue);
  std::byte* begin = nullptr;
  const DeviceMemory::Piece* piece = device_memory().find(p, &begin);
  if (!piece || !piece->owned || !device_memory().holds(begin, piece->bytes))
    return ended(cudaErrorInvalidValue);
  const Handle mine{getpid(), device_memory().file(), uint64_t(begin - device_memory().begin()),
                    piece->bytes};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &mine, sizeof mine);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** p, cudaIpcMemHandle_t handle, unsigned int) {
  CALL_OF_RUNTIME;
  perhaps_wait_for_gpu();
  Handle theirs;
  std::memcpy(&theirs, &handle, sizeof theirs);
  if (theirs.process == getpid()) return ended(cudaErrorDeviceUninitialized);
  const std::string path = "/proc/" + std::to_string(theirs.process) + "/fd/" + std::to_string(theirs.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return ended(cudaErrorMapBufferObjectFailed);
  void* at = mmap(nullptr, theirs.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, off_t(theirs.offset));
  close(file);
  if (at == MAP_FAILED) return ended(cudaErrorMapBufferObjectFailed);
  device_memory().add(at, theirs.bytes, "memory of another process", current_gpu);
  return *p = at, cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* p) {
  CALL_OF_RUNTIME;
  wait_for_gpu();
  const DeviceMemory::Piece* piece = device_memory().find(p, nullptr);
  if (!piece) return ended(cudaErrorInvalidValue);
  const size_t bytes = piece->bytes;
  device_memory().remove(p);
  return munmap(p, bytes) == 0 ? cudaSuccess : ended(cudaErrorInvalidValue);
}

}  // extern "C"
