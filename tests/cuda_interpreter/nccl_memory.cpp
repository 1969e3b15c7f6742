// Memory of NCCL's allocator and registered memory ("User Buffer Registration", "Memory Allocator"
// and "ncclMemAlloc" in NCCL's documentation). The allocator maps and unmaps memory while the GPU
// is idle.
#include <algorithm>
#include <optional>
#include <set>

#include "tests/cuda_interpreter/calls.h"
#include "tests/cuda_interpreter/device_memory.h"
#include "tests/cuda_interpreter/nccl_communicator.h"
#include "tests/cuda_interpreter/settings.h"

namespace nccl_standin {

using interpreter::device_memory, interpreter::DeviceMemory, interpreter::setting, interpreter::streams;
using Giver = DeviceMemory::Giver;

namespace {

// Communicators of this process with registered memory.
struct Registering {
  std::mutex mutex;
  std::set<ncclComm_t> comms;
};
Registering& registering() {
  static auto* all = new Registering;
  return *all;
}

void wait_for(int device) {
  if (setting("WAITS", 0)) streams().finish_device(device);
}

bool is_over(State s) { return s == State::aborted || s == State::destroyed; }

// Returns the registered memory of the communicator that contains these bytes.
std::optional<Range> registered(ncclComm_t comm, const Range& r) {
  const auto at = std::find_if(comm->registered.begin(), comm->registered.end(), [&](const auto& each) {
    const Range& known = each.second;
    return r.begin >= known.begin && r.begin + r.bytes <= known.begin + known.bytes;
  });
  return at == comm->registered.end() ? std::nullopt : std::optional(at->second);
}

Giver giver_of(const Range& r) {
  const DeviceMemory::Piece* piece = device_memory().find(r.begin, nullptr);
  return piece ? piece->giver : Giver::cuda;
}

}  // namespace

// NVLink SHARP uses the output of a gather, the input of a reduce-scatter, and both of an
// all-reduce.
Place place_of(ncclComm_t comm, const Part& p) {
  const auto [in, out] = ranges(comm, p);
  const std::optional<Range> reads = registered(comm, in), writes = registered(comm, out);
  if ((in.bytes > 0 && !reads) || (out.bytes > 0 && !writes)) return {};
  if (in.bytes == 0 && out.bytes == 0) return {};
  const bool nccl = giver_of(in.bytes > 0 ? in : out) == Giver::nccl;
  Place place{nccl ? Place::of_nccl : Place::of_cuda};
  const bool all = p.op == Op::all_reduce;
  if (nccl && (all || p.op == Op::reduce_scatter)) place.in = in.begin - reads->begin;
  if (nccl && (all || p.op == Op::all_gather)) place.out = out.begin - writes->begin;
  return place;
}

}  // namespace nccl_standin

using namespace nccl_standin;

extern "C" {

// Allocates on the thread's GPU. For zero bytes, NCCL calls CUDA, which returns null.
ncclResult_t ncclMemAlloc(void** p, size_t bytes) {
  CALL_OF_LIBRARY(ncclResult_t);
  const int device = interpreter::gpu_of_thread();
  wait_for(device);
  void* given = bytes > 0 ? device_memory().allocate(device, bytes, Giver::nccl) : nullptr;
  return given || bytes == 0 ? (*p = given, ncclSuccess) : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* p) {
  CALL_OF_LIBRARY(ncclResult_t);
  if (!p) return ncclSuccess;
  std::byte* begin = nullptr;
  const DeviceMemory::Piece* piece = device_memory().find(p, &begin);
  if (!piece || begin != p || piece->giver != Giver::nccl)
    return refuse(nullptr, "ncclMemFree of what ncclMemAlloc did not give");
  const Range freed{begin, piece->bytes};
  {
    std::lock_guard lock(registering().mutex);
    for (ncclComm_t comm : registering().comms) {
      std::lock_guard its(comm->mutex);
      for (const auto& [handle, range] : comm->registered)
        if (range.meets(freed) && !is_over(comm->state))
          return refuse(comm, "ncclMemFree of memory that is registered");
    }
  }
  wait_for(piece->device);
  return device_memory().free(p, Giver::nccl) ? ncclSuccess : ncclInternalError;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, size_t bytes, void** handle) {
  CALL_OF_LIBRARY(ncclResult_t);
  if (const std::string no = obstacle(comm, "ncclCommRegister"); !no.empty()) return refuse(comm, no);
  const DeviceMemory::Piece* piece = device_memory().find(buffer, nullptr);
  if (!piece || piece->device != comm->device || !device_memory().holds(buffer, bytes))
    return refuse(comm, "ncclCommRegister of memory outside of its GPU");
  {
    std::lock_guard lock(registering().mutex);
    registering().comms.insert(comm);
  }
  std::lock_guard lock(comm->mutex);
  for (const auto& [other, range] : comm->registered)
    if (giver_of(range) != piece->giver) return refuse(comm, "ncclCommRegister of memory of two allocators");
  *handle = new char;
  comm->registered[*handle] = {static_cast<const std::byte*>(buffer), bytes};
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  CALL_OF_LIBRARY(ncclResult_t);
  if (const std::string no = obstacle(comm, "ncclCommDeregister"); !no.empty()) return refuse(comm, no);
  std::lock_guard lock(comm->mutex);
  if (comm->registered.erase(handle) == 0) return refuse(comm, "ncclCommDeregister of another handle");
  return delete static_cast<char*>(handle), ncclSuccess;
}

}  // extern "C"
