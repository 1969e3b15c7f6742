// Rules for calls in NCCL's documentation ("Creating a Communicator", "Group Calls", "In-place
// Operations", "Fault Tolerance").
#include <cstdarg>
#include <cstdio>

#include "tests/cuda_interpreter/device_memory.h"
#include "tests/cuda_interpreter/nccl_communicator.h"
#include "tests/cuda_interpreter/settings.h"

namespace nccl_standin {

using interpreter::device_memory, interpreter::DeviceMemory;

thread_local std::string last_error;

std::string text(const char* format, ...) {
  char line[700];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  return line;
}

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
    case ncclInt32:
      return 4;
    default:
      return 8;
  }
}

std::pair<Range, Range> ranges(ncclComm_t comm, const Part& p) {
  const size_t n = p.count * size_of(p.type), all = n * size_t(comm->size);
  Range in{static_cast<const std::byte*>(p.in), p.op == Op::reduce_scatter ? all : n};
  Range out{static_cast<const std::byte*>(p.out), p.op == Op::all_gather ? all : n};
  if (p.op == Op::recv || (p.op == Op::broadcast && comm->rank != p.peer)) in = {};
  if (p.op == Op::send || (p.op == Op::reduce && comm->rank != p.peer)) out = {};
  return {in, out};
}

ncclResult_t refuse(ncclComm_t comm, const std::string& why) {
  last_error = comm ? text("rank %d of %d: %s", comm->rank, comm->size, why.c_str()) : why;
  std::fprintf(stderr, "nccl stand-in: %s\n", last_error.c_str());
  int whole = 0;
  if (comm && comm->shared && comm->shared->broken.compare_exchange_strong(whole, 1)) {
    std::snprintf(comm->shared->why, sizeof comm->shared->why, "%s", last_error.c_str());
    comm->shared->broken = 2;
  }
  return ncclInvalidUsage;
}

// Returns an empty text if calls are allowed, otherwise the reason.
std::string obstacle(ncclComm_t comm, const char* call) {
  switch (comm->state.load()) {
    case State::joining:
      return text("%s before the communicator is ready (ncclCommGetAsyncError says when)", call);
    case State::settling:
      return text("%s while the call before is in progress (ncclCommGetAsyncError says how long)", call);
    case State::finalizing:
    case State::finalized:
      return text("%s after ncclCommFinalize", call);
    case State::destroyed:
      return text("%s after ncclCommDestroy", call);
    case State::aborted:
      return text("%s after ncclCommAbort", call);
    case State::ready:
      return {};
  }
  return {};
}

std::string problem_of(const Called& c) {
  const Part& p = c.part;
  const char* name = kOps[int(p.op)];
  if (std::string no = obstacle(c.comm, name); !no.empty()) return no;
  if (p.peer < 0 || p.peer >= c.comm->size) return text("%s: rank %d of %d", name, p.peer, c.comm->size);
  if (p.by != ncclSum && p.by != ncclMax) return text("%s: a reduction that is not made here", name);
  const auto* stream = reinterpret_cast<Stream*>(c.stream);
  if (reinterpret_cast<uintptr_t>(c.stream) <= 2) return text("%s on a default stream", name);
  if (stream->device != c.comm->device)
    return text("%s on a stream of GPU %d, the communicator is of GPU %d", name, stream->device,
                c.comm->device);
  if (stream->capture) return text("%s in a capture, which is not interpreted", name);
  const auto [in, out] = ranges(c.comm, p);
  for (const auto& [range, what] : {std::pair{in, "input"}, {out, "output"}}) {
    if (range.bytes == 0) continue;
    const DeviceMemory::Piece* piece = device_memory().find(range.begin, nullptr);
    if (!piece || !device_memory().holds(range.begin, range.bytes) || !piece->owned)
      return text("%s: its %s is not in a GPU's memory: %s", name, what,
                  device_memory().problem(range.begin, range.bytes).c_str());
    if (piece->device != c.comm->device)
      return text("%s: its %s is on GPU %d, the communicator on GPU %d", name, what, piece->device,
                  c.comm->device);
  }
  const size_t mine = p.count * size_of(p.type) * size_t(c.comm->rank);
  const bool in_place = p.op == Op::all_gather       ? in.begin == out.begin + mine
                        : p.op == Op::reduce_scatter ? out.begin == in.begin + mine
                                                     : in.begin == out.begin;
  if (in.bytes && out.bytes && in.meets(out) && !in_place)
    return text("%s: input and output overlap, and not as an operation in place", name);
  return {};
}

// NCCL allocates at a first call, which waits for whole GPUs. A step moves more than one element, so the
// first call is one element before any step.
std::string connect(ncclComm_t comm, const Part& p) {
  if (!comm->connected.insert({p.op, pairwise(p.op) ? p.peer : -1}).second) return {};
  if (p.count == 1 || interpreter::setting("NCCL_CONNECTS", 0)) return {};
  return text("%s of %zu elements%s connects ranks, which allocates: call it with one element before a step",
              kOps[int(p.op)], p.count,
              pairwise(p.op) ? text(", the first with rank %d,", p.peer).c_str() : "");
}

// Requires that the calls of a group share no memory that one of them writes.
std::string overlap(std::span<const Called> calls) {
  for (size_t i = 0; i < calls.size(); ++i)
    for (size_t j = 0; j < calls.size(); ++j) {
      if (i == j) continue;
      const Range out = ranges(calls[i].comm, calls[i].part).second;
      const auto [other_in, other_out] = ranges(calls[j].comm, calls[j].part);
      if (out.bytes && ((other_in.bytes && out.meets(other_in)) || (other_out.bytes && out.meets(other_out))))
        return text("a group's part %zu writes what its part %zu uses", i + 1, j + 1);
    }
  return {};
}

}  // namespace nccl_standin
