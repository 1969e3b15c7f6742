// Memory of NCCL's own allocator and memory that is registered ("User Buffer Registration", "Memory
// Allocator" and "ncclMemAlloc" of NCCL's documentation). Its allocator maps memory, and takes it back, while
// the GPU does nothing else.
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

// That have registered something, of this process.
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

// What has these bytes, of what the communicator has registered.
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

// NVLink SHARP uses what a gather writes, what a reduction to parts reads, and both of a reduction to all.
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

// On the thread's GPU. Without a byte NCCL asks CUDA, which gives none either.
ncclResult_t ncclMemAlloc(void** p, size_t bytes) {
  CALL_OF_LIBRARY(ncclResult_t);
  int device = 0;
  cudaGetDevice(&device);
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
    return refuse(comm, "ncclCommRegister of what is no memory of its GPU");
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
  if (comm->registered.erase(handle) == 0) return refuse(comm, "ncclCommDeregister of no handle of its own");
  return delete static_cast<char*>(handle), ncclSuccess;
}

}  // extern "C"
