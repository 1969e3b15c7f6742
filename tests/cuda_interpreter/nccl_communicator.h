// Of the stand-in for NCCL: communicators, and what their ranks say of a call to each other. They are
// processes, and a segment of memory is shared by all of them.
#pragma once
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_interpreter/streams.h"

namespace nccl_standin {

constexpr int kMostRanks = 16;
constexpr uint64_t kSlots = 64;  // of calls that a rank has published; a group has no more
constexpr int kMostLooks = 5;    // at something in progress before it is done

enum class Op : int { all_gather, reduce_scatter, all_reduce, broadcast, reduce, send, recv };
inline constexpr const char* kOps[] = {"AllGather", "ReduceScatter", "AllReduce", "Broadcast",
                                       "Reduce",    "Send",          "Recv"};

inline bool pairwise(Op op) { return op == Op::send || op == Op::recv; }

// One call, as all ranks have to make it but for their buffers; peer is a root, or the other end.
struct Part {
  Op op;
  const void* in;
  void* out;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t by;
  int peer;
  uint64_t number = 0;  // of the communicator's collectives, or of the messages that way between the two
};

// Of the buffers of a call: whether they are registered, with memory of which allocator, and where those
// begin that NVLink SHARP would use, of each in its registered memory.
struct Place {
  enum Kind : int { plain, of_cuda, of_nccl } kind = plain;
  ptrdiff_t in = 0, out = 0;
};

// What a rank says of a call to the others. `number` is written last.
struct Said {
  std::atomic<uint64_t> number;
  Op op;
  ncclDataType_t type;
  ncclRedOp_t by;
  int root, position, parts;
  Place place;
  size_t count;
  int process, file;  // whose memory has the input
  uint64_t offset;
};

struct Member {
  std::atomic<int> process, device, aborted;
  std::atomic<uint64_t> computed;           // collectives
  std::atomic<uint64_t> taken[kMostRanks];  // messages from each
  Said collectives[kSlots];
  Said sends[kMostRanks][kSlots], recvs[kMostRanks][kSlots];
};

// Of all ranks of a communicator: a file without a name, in the process that made the id.
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

// Never freed, so that a later use can be named.
struct ncclComm {
  enum class State { joining, ready, settling, finalizing, finalized, destroyed, aborted };

  int rank = 0, size = 0, device = 0;
  bool blocking = true;
  std::shared_ptr<nccl_standin::Segment> shared;
  std::atomic<State> state{State::joining};
  std::mutex mutex;
  int looks = 0;                            // before what is in progress is done
  std::vector<std::function<void()>> held;  // work that waits for that
  std::map<void*, nccl_standin::Range> registered;
  uint64_t collectives = 0, sent[nccl_standin::kMostRanks] = {}, received[nccl_standin::kMostRanks] = {};
  uint64_t tickets = 0;
  std::atomic<bool> left{false};  // by a rank whose data it needed
  std::atomic<uint64_t> turn{0};  // its groups come one after the other, on whatever streams
  std::mt19937_64 random;

  bool over() const { return state == State::aborted || shared->broken.load() == 2; }
  nccl_standin::Member& me() const { return shared->members[rank]; }
};

namespace nccl_standin {

using State = ncclComm::State;
using interpreter::Stream;

// A call, and on which communicator and stream it was made.
struct Called {
  ncclComm_t comm;
  cudaStream_t stream;
  Part part;
};

extern thread_local std::string last_error;

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
size_t size_of(ncclDataType_t type);

// What a rank reads and writes in a call.
std::pair<Range, Range> ranges(ncclComm_t comm, const Part& p);

// Names who broke a rule, on stderr and to all ranks of the communicator.
ncclResult_t refuse(ncclComm_t comm, const std::string& why);

// Empty, or why a call may not be made: of any kind; of this one; because a group writes what it uses.
std::string obstacle(ncclComm_t comm, const char* call);
std::string problem_of(const Called& c);
std::string overlap(std::span<const Called> calls);

// Enqueues a group's parts.
void give(ncclComm_t comm, Stream* stream, std::vector<Part> parts);

// Under the communicator's mutex.
Place place_of(ncclComm_t comm, const Part& p);

void* map_file(int process, int file, size_t bytes, int protection);

}  // namespace nccl_standin
