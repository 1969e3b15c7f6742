// Communicators of the NCCL replacement, and the calls that their ranks publish to each other.
// Ranks are processes that share a memory segment.
#pragma once
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_interpreter/streams.h"

namespace nccl_standin {

constexpr int kMostRanks = 16;
constexpr uint64_t kSlots = 64;  // calls that a rank has published; a group has no more
constexpr int kMostLooks = 5;    // queries before something in progress is complete

enum class Op : int { all_gather, reduce_scatter, all_reduce, broadcast, reduce, send, recv };
inline constexpr const char* kOps[] = {"AllGather", "ReduceScatter", "AllReduce", "Broadcast",
                                       "Reduce",    "Send",          "Recv"};

inline bool pairwise(Op op) { return op == Op::send || op == Op::recv; }

// A call, which must be equal on all ranks except for buffers; peer is a root, or the other end.
struct Part {
  Op op;
  const void* in;
  void* out;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t by;
  int peer;
  uint64_t number = 0;  // of the communicator's collectives, or of messages in that direction between the two
};

// Registration of a call's buffers: the allocator of their memory, and the offset of the buffers
// that NVLink SHARP would use in their registered memory.
struct Place {
  enum Kind : int { plain, of_cuda, of_nccl } kind = plain;
  ptrdiff_t in = 0, out = 0;
};

// A call as a rank publishes it. `number` is written last.
struct Said {
  std::atomic<uint64_t> number;
  Op op;
  ncclDataType_t type;
  ncclRedOp_t by;
  int root, position, parts;
  Place place;
  size_t count;
  int process, file;  // process and file with the input
  uint64_t offset;
};

struct Member {
  std::atomic<int> process, device, aborted;
  std::atomic<uint64_t> computed;           // collectives
  std::atomic<uint64_t> taken[kMostRanks];  // messages from each rank
  Said collectives[kSlots];
  Said sends[kMostRanks][kSlots], recvs[kMostRanks][kSlots];
};

// Shared by all ranks of a communicator: an unnamed file in the process that made the id.
struct Segment {
  std::atomic<int> size, joined, broken;
  char why[800];
  Member members[kMostRanks];
};

struct Range {
  const std::byte* begin = nullptr;
  size_t bytes = 0;
  bool meets(const Range& o) const { return begin < o.begin + o.bytes && o.begin < begin + bytes; }
};

}  // namespace nccl_standin

// Never freed, so that later uses can be reported.
struct ncclComm {
  enum class State { joining, ready, settling, finalizing, finalized, destroyed, aborted };

  int rank = 0, size = 0, device = 0;
  bool blocking = true;
  std::shared_ptr<nccl_standin::Segment> shared;
  std::atomic<State> state{State::joining};
  std::mutex mutex;
  int looks = 0;                            // queries until the operation in progress is complete
  std::vector<std::function<void()>> held;  // work that waits for it
  std::map<void*, nccl_standin::Range> registered;
  std::set<std::pair<nccl_standin::Op, int>> connected;  // kinds of calls made, and ranks messaged
  uint64_t collectives = 0, sent[nccl_standin::kMostRanks] = {}, received[nccl_standin::kMostRanks] = {};
  uint64_t tickets = 0;
  std::atomic<bool> left{false};  // left by a rank with data that this rank needed
  std::atomic<uint64_t> turn{0};  // groups run one after the other, on any streams
  std::mt19937_64 random;

  bool over() const { return state == State::aborted || shared->broken.load() == 2; }
  nccl_standin::Member& me() const { return shared->members[rank]; }
};

namespace nccl_standin {

using State = ncclComm::State;
using interpreter::Stream;

// A call with its communicator and stream.
struct Called {
  ncclComm_t comm;
  cudaStream_t stream;
  Part part;
};

extern thread_local std::string last_error;

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
size_t size_of(ncclDataType_t type);

// Returns the ranges that a rank reads and writes in a call.
std::pair<Range, Range> ranges(ncclComm_t comm, const Part& p);

// Reports the rank that broke a rule, on stderr and to all ranks of the communicator.
ncclResult_t refuse(ncclComm_t comm, const std::string& why);

// Returns an empty text, or why a call is invalid: any call; this one; or because a group writes
// its own operands.
std::string obstacle(ncclComm_t comm, const char* call);
std::string problem_of(const Called& c);
std::string overlap(std::span<const Called> calls);

// Returns an empty text, or why a call must not be the communicator's first of its kind or to this rank.
// Requires the communicator's mutex.
std::string connect(ncclComm_t comm, const Part& p);

// Enqueues the parts of a group.
void give(ncclComm_t comm, Stream* stream, std::vector<Part> parts);

// Requires the communicator's mutex.
Place place_of(ncclComm_t comm, const Part& p);

void* map_file(int process, int file, size_t bytes, int protection);

}  // namespace nccl_standin
