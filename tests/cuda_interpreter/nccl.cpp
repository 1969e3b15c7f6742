// A library in place of libnccl.so.2 (CLEAVE_NCCL names it), for ranks that are processes whose GPUs are
// interpreted. It holds its callers to the rules of NCCL's documentation ("Creating a Communicator", "Group
// Calls", "In-place Operations", "Fault Tolerance", "User Buffer Registration") and names who broke one; what
// NCCL may put off, it puts off. Sums are made in the order of ranks, which NCCL does not promise.
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstring>
#include <map>
#include <span>

#include "comm/reduce.h"
#include "tests/cuda_interpreter/calls.h"
#include "tests/cuda_interpreter/device_memory.h"
#include "tests/cuda_interpreter/settings.h"
#include "tests/cuda_interpreter/streams.h"

namespace nccl_standin {

using namespace interpreter;

constexpr int kMostRanks = 16;
constexpr uint64_t kSlots = 64;  // of calls that a rank has published; a group has no more
constexpr int kMostLooks = 5;    // at something in progress before it is done

enum class Op : int { all_gather, reduce_scatter, all_reduce, broadcast, reduce, send, recv };
constexpr const char* kOps[] = {"AllGather", "ReduceScatter", "AllReduce", "Broadcast",
                                "Reduce",    "Send",          "Recv"};

bool pairwise(Op op) { return op == Op::send || op == Op::recv; }

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

// What a rank says of a call to the others. `number` is written last.
struct Said {
  std::atomic<uint64_t> number;
  Op op;
  ncclDataType_t type;
  ncclRedOp_t by;
  int root, position, parts, registered;
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

struct Id {
  char magic[8];
  int process, file;
};
constexpr char kMagic[8] = "standin";
static_assert(sizeof(Id) <= sizeof(ncclUniqueId));

thread_local std::string last_error;

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string text(const char* format, ...) {
  char line[700];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  return line;
}

void* map_file(int process, int file, size_t bytes, int protection) {
  const int fd = open(text("/proc/%d/fd/%d", process, file).c_str(),
                      (protection & PROT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* at = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
  close(fd);
  return at == MAP_FAILED ? nullptr : at;
}

// The GPU memory of another process; null when it is gone.
const std::byte* memory_of(int process, int file) {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, const std::byte*> known;
  if (process == getpid()) return device_memory().begin();
  std::lock_guard lock(mutex);
  const std::byte*& at = known[{process, file}];
  if (!at) at = static_cast<const std::byte*>(map_file(process, file, DeviceMemory::kSpan, PROT_READ));
  return at;
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

cleave::DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat16:
      return cleave::DType::fp16;
    case ncclBfloat16:
      return cleave::DType::bf16;
    case ncclFloat32:
      return cleave::DType::fp32;
    case ncclFloat64:
      return cleave::DType::fp64;
    case ncclInt32:
      return cleave::DType::int32;
    default:
      return cleave::DType::int64;
  }
}

struct Range {
  const std::byte* begin = nullptr;
  size_t bytes = 0;
  bool meets(const Range& o) const { return begin < o.begin + o.bytes && o.begin < begin + bytes; }
};

}  // namespace nccl_standin

using namespace nccl_standin;

// Never freed, so that a later use can be named.
struct ncclComm {
  enum class State { joining, ready, settling, finalizing, finalized, destroyed, aborted };

  int rank = 0, size = 0, device = 0;
  bool blocking = true;
  std::shared_ptr<Segment> shared;
  std::atomic<State> state{State::joining};
  std::mutex mutex;
  int looks = 0;                            // before what is in progress is done
  std::vector<std::function<void()>> held;  // work that waits for that
  std::map<void*, Range> registered;
  uint64_t collectives = 0, sent[kMostRanks] = {}, received[kMostRanks] = {};
  uint64_t tickets = 0;
  std::atomic<bool> left{false};  // by a rank whose data it needed
  std::atomic<uint64_t> turn{0};  // its groups come one after the other, on whatever streams
  std::mt19937_64 random;

  bool over() const { return state == State::aborted || shared->broken.load() == 2; }
  Member& me() const { return shared->members[rank]; }
};

namespace nccl_standin {

using State = ncclComm::State;

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

// Whether calls may be made; else why not.
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

std::string describe(const Said& s) {
  return text("%s of %zu elements of type %d%s%s, part %d of a group of %d", kOps[int(s.op)], s.count,
              int(s.type), s.root >= 0 ? text(", root %d", s.root).c_str() : "",
              s.by != ncclNumOps ? text(", reduced by %d", int(s.by)).c_str() : "", s.position + 1, s.parts);
}

// Empty, or what two ranks that should make the same call, or the two ends of a message, differ in.
std::string difference(const Said& a, const Said& b) {
  const bool pair = pairwise(a.op);
  const bool same = pair ? a.count == b.count && a.type == b.type
                         : a.op == b.op && a.count == b.count && a.type == b.type && a.by == b.by &&
                               a.root == b.root && a.position == b.position && a.parts == b.parts;
  if (!same) return "not the same call";
  if (!pair && a.registered != b.registered) return "its buffers are registered on one rank only";
  return {};
}

// The parts of a group on one communicator, from their call to their end.
struct Group {
  ncclComm_t comm;
  std::vector<Part> parts;
  uint64_t ticket;
  std::vector<std::vector<std::byte>> results;
  int delay;
  bool failed = false;

  Said& said(const Part& p) const {
    Member& me = comm->me();
    const uint64_t slot = p.number % kSlots;
    if (p.op == Op::send) return me.sends[p.peer][slot];
    return p.op == Op::recv ? me.recvs[p.peer][slot] : me.collectives[slot];
  }
  // What rank r says of the same call: of a message its other end.
  const Said& said_by(int r, const Part& p) const {
    const Member& m = comm->shared->members[r];
    const uint64_t slot = p.number % kSlots;
    if (p.op == Op::send) return m.recvs[comm->rank][slot];
    return p.op == Op::recv ? m.sends[comm->rank][slot] : m.collectives[slot];
  }
  template <class F>
  bool all_others(F f) const {
    for (const Part& p : parts)
      for (int r = 0; r < comm->size; ++r)
        if ((!pairwise(p.op) || r == p.peer) && !f(r, p)) return false;
    return true;
  }

  bool registered(const Part& p) const;
  void publish();
  bool met();
  void compute();
  void leave(const Part& p, int r);
  bool computed() const;
  void write();
};

std::pair<Range, Range> ranges(ncclComm_t comm, const Part& p) {
  const size_t n = p.count * size_of(p.type), all = n * size_t(comm->size);
  Range in{static_cast<const std::byte*>(p.in), p.op == Op::reduce_scatter ? all : n};
  Range out{static_cast<const std::byte*>(p.out), p.op == Op::all_gather ? all : n};
  if (p.op == Op::recv || (p.op == Op::broadcast && comm->rank != p.peer)) in = {};
  if (p.op == Op::send || (p.op == Op::reduce && comm->rank != p.peer)) out = {};
  return {in, out};
}

bool Group::registered(const Part& p) const {
  const auto [in, out] = ranges(comm, p);
  const auto covered = [&](const Range& r) {
    return r.bytes == 0 ||
           std::any_of(comm->registered.begin(), comm->registered.end(), [&](const auto& each) {
             const Range& known = each.second;
             return r.begin >= known.begin && r.begin + r.bytes <= known.begin + known.bytes;
           });
  };
  return covered(in) && covered(out);
}

// From here on the others may read this rank's input.
void Group::publish() {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& p = parts[i];
    Said& s = said(p);
    const bool rooted = p.op == Op::broadcast || p.op == Op::reduce;
    const bool sums = p.op == Op::all_reduce || p.op == Op::reduce_scatter || p.op == Op::reduce;
    s.op = p.op, s.type = p.type, s.by = sums ? p.by : ncclNumOps, s.root = rooted ? p.peer : -1;
    s.position = int(i), s.parts = int(parts.size()), s.count = p.count;
    {
      std::lock_guard lock(comm->mutex);
      s.registered = registered(p);
    }
    s.process = getpid(), s.file = device_memory().file();
    const auto in = ranges(comm, p).first;
    s.offset = in.begin ? uint64_t(in.begin - device_memory().begin()) : 0;
    s.number.store(p.number + 1, std::memory_order_release);
  }
}

bool Group::met() {
  if (comm->over()) return true;
  return all_others([&](int r, const Part& p) {
    const Said& theirs = said_by(r, p);
    if (theirs.number.load(std::memory_order_acquire) != p.number + 1) return false;
    const Said& mine = said(p);
    const std::string wrong = difference(mine, theirs);
    if (wrong.empty()) return true;
    const std::string call = pairwise(p.op) ? text("message %lu between ranks %d and %d",
                                                   (unsigned long)p.number + 1, comm->rank, p.peer)
                                            : text("collective %lu", (unsigned long)p.number + 1);
    refuse(comm, text("%s: %s: here %s; on rank %d %s", call.c_str(), wrong.c_str(), describe(mine).c_str(),
                      r, describe(theirs).c_str()));
    return false;
  });
}

// What NCCL does then is not defined: it may wait for ever, or move anything.
void Group::leave(const Part& p, int r) {
  failed = true, comm->left = true;
  std::fprintf(stderr, "nccl stand-in: rank %d of %d: rank %d has ended or aborted in the middle of %s\n",
               comm->rank, comm->size, r, describe(said(p)).c_str());
}

void Group::compute() {
  if (comm->over()) return;
  for (const Part& p : parts) {
    const size_t n = p.count * size_of(p.type), at = n * size_t(comm->rank);
    std::vector<std::byte>& result = results.emplace_back();
    const auto input = [&](int r) -> const std::byte* {
      const Said& s = r == comm->rank && p.op != Op::recv ? said(p) : said_by(r, p);
      const std::byte* memory = memory_of(s.process, s.file);
      if (!memory || comm->shared->members[r].aborted) leave(p, r);
      return memory ? memory + s.offset : nullptr;
    };
    std::vector<const std::byte*> from;
    if (p.op == Op::recv || p.op == Op::broadcast)
      from = {input(p.peer)};
    else if (p.op != Op::send)
      for (int r = 0; r < comm->size; ++r) from.push_back(input(r));
    if (failed) return;
    if (p.op == Op::all_gather || p.op == Op::broadcast || p.op == Op::recv) {
      for (const std::byte* each : from) result.insert(result.end(), each, each + n);
    } else if (p.op != Op::send && (p.op != Op::reduce || comm->rank == p.peer)) {
      if (p.op == Op::reduce_scatter)
        for (const std::byte*& each : from) each += at;
      result.resize(n);
      cleave::comm::reduce_in_order(p.by == ncclMax ? cleave::Reduction::max : cleave::Reduction::sum,
                                    dtype_of(p.type), result.data(), from, int64_t(p.count));
    }
    if (p.op == Op::recv)
      comm->me().taken[p.peer].store(p.number + 1, std::memory_order_release);
    else if (p.op != Op::send)
      comm->me().computed.store(p.number + 1, std::memory_order_release);
  }
}

// Nobody reads this rank's input any more, and a drawn number of looks later.
bool Group::computed() const {
  if (comm->over() || failed) return true;
  return all_others([&](int r, const Part& p) {
    const Member& m = comm->shared->members[r];
    if (p.op == Op::recv) return true;
    return (p.op == Op::send ? m.taken[comm->rank] : m.computed).load(std::memory_order_acquire) > p.number;
  });
}

void Group::write() {
  if (!comm->over() && !failed)
    for (size_t i = 0; i < parts.size(); ++i) {
      const Part& p = parts[i];
      const Range out = ranges(comm, p).second;
      if (results[i].empty()) continue;
      if (!device_memory().holds(out.begin, out.bytes))
        throw Defect(std::string(kOps[int(p.op)]) +
                     " writes: " + device_memory().problem(out.begin, out.bytes));
      std::memcpy(p.out, results[i].data(), results[i].size());
    }
  comm->turn.store(ticket + 1);
}

void give(ncclComm_t comm, Stream* stream, std::vector<Part> parts) {
  auto group = std::make_shared<Group>();
  group->comm = comm, group->parts = std::move(parts), group->ticket = comm->tickets++;
  group->delay = int(comm->random() % 20);
  for (Part& p : group->parts)
    p.number = p.op == Op::send   ? comm->sent[p.peer]++
               : p.op == Op::recv ? comm->received[p.peer]++
                                  : comm->collectives++;
  const std::string name = text("NCCL's %s", kOps[int(group->parts[0].op)]);
  const auto wait = [&](const char* what, std::function<bool()> ready) {
    streams().give(stream, {name + what, {}, {}, std::move(ready), "nccl"});
  };
  const auto run = [&](auto f) {
    streams().give(stream, {name, [f](std::mt19937_64&) { f(); }, {}, {}, "nccl"});
  };
  wait(", behind the communicator's calls before",
       [comm, group] { return comm->turn.load() == group->ticket; });
  run([group] { group->publish(); });
  wait(", until all ranks are there", [group] { return group->met(); });
  run([group] { group->compute(); });
  wait(", until all ranks are done", [group] { return group->computed() && --group->delay < 0; });
  run([group] { group->write(); });
}

// --- calls, and groups of them

struct Called {
  ncclComm_t comm;
  cudaStream_t stream;
  Part part;
};
thread_local int depth = 0;
thread_local std::vector<Called> called;
thread_local bool refused_in_group = false;

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
      return text("%s: its %s is no memory of a GPU: %s", name, what,
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

// The calls of a group have no memory in common that one of them writes.
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

// Enqueues what was called; where the communicator does not block, now or when it was asked often enough.
ncclResult_t launch() {
  const std::vector<Called> all = std::exchange(called, {});
  if (std::exchange(refused_in_group, false)) return ncclInvalidUsage;
  if (all.empty()) return ncclSuccess;
  if (const std::string wrong = overlap(all); !wrong.empty()) return refuse(all[0].comm, wrong);
  std::map<ncclComm_t, std::vector<Called>> by_comm;
  for (const Called& c : all) by_comm[c.comm].push_back(c);
  ncclResult_t result = ncclSuccess;
  for (const auto& [comm, calls] : by_comm) {
    std::vector<Part> parts;
    for (const Called& c : calls) {
      if (c.stream != calls[0].stream)
        return refuse(comm, "a group on several streams, which is not interpreted");
      if (c.part.count > 0) parts.push_back(c.part);
    }
    if (parts.size() > kSlots) return refuse(comm, text("a group of %zu calls", parts.size()));
    if (parts.empty()) continue;
    std::lock_guard lock(comm->mutex);
    auto work = [comm, parts, s = reinterpret_cast<Stream*>(calls[0].stream)] { give(comm, s, parts); };
    if (comm->blocking || comm->random() % 2 == 0) {
      work();
    } else {
      comm->held.push_back(work), comm->looks = 1 + int(comm->random() % kMostLooks);
      comm->state = State::settling, result = ncclInProgress;
    }
  }
  return result;
}

ncclResult_t call(const Called& c) {
  if (!c.comm) return ncclInvalidArgument;
  if (const std::string wrong = problem_of(c); !wrong.empty()) {
    refused_in_group = depth > 0;
    return refuse(c.comm, wrong);
  }
  called.push_back(c);
  return depth > 0 ? ncclSuccess : launch();
}

}  // namespace nccl_standin

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  CALL_OF_LIBRARY(ncclResult_t);
  return *version = NCCL_VERSION_CODE, ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclRemoteError:
      return "another rank is gone";
    case ncclInProgress:
      return "in progress";
    default:
      return "a system error";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  if (comm && comm->shared && comm->shared->broken.load() == 2) return comm->shared->why;
  return last_error.c_str();
}

// The file stays open until this process ends, as long as somebody may have to find it.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  CALL_OF_LIBRARY(ncclResult_t);
  Id mine{{}, getpid(), memfd_create("nccl_standin", MFD_CLOEXEC)};
  std::memcpy(mine.magic, kMagic, sizeof kMagic);
  if (mine.file < 0 || ftruncate(mine.file, sizeof(Segment)) != 0) return ncclSystemError;
  std::memset(id, 0, sizeof *id);
  std::memcpy(id, &mine, sizeof mine);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  CALL_OF_LIBRARY(ncclResult_t);
  Id theirs;
  std::memcpy(&theirs, &id, sizeof theirs);
  if (std::memcmp(theirs.magic, kMagic, sizeof kMagic) != 0)
    return refuse(nullptr, "an id that ncclGetUniqueId did not make");
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size)
    return refuse(nullptr, text("rank %d of %d", rank, size));
  if (config && config->magic != 0xcafebeef)
    return refuse(nullptr, "a configuration that NCCL_CONFIG_INITIALIZER did not fill");
  void* at = map_file(theirs.process, theirs.file, sizeof(Segment), PROT_READ | PROT_WRITE);
  if (!at) return ncclSystemError;
  ncclComm_t comm = *out = new ncclComm;
  comm->rank = rank, comm->size = size;
  comm->shared = {static_cast<Segment*>(at), [](Segment* s) { munmap(s, sizeof *s); }};
  comm->blocking = !config || config->blocking != 0;
  comm->random.seed(uint64_t(setting("SEED", 1)) * 7919 + uint64_t(rank));
  comm->looks = 1 + int(comm->random() % kMostLooks);
  cudaGetDevice(&comm->device);
  int nobody = 0;
  if (!comm->shared->size.compare_exchange_strong(nobody, size) && nobody != size)
    return refuse(comm, text("another rank says that there are %d", nobody));
  nobody = 0;
  if (!comm->me().process.compare_exchange_strong(nobody, getpid()))
    return refuse(comm, "two ranks have this number");
  comm->me().device = comm->device + 1;
  for (int r = 0; r < size; ++r)
    if (r != rank && comm->shared->members[r].device == comm->device + 1)
      return refuse(comm, text("ranks %d and %d have the same GPU, %d", r, rank, comm->device));
  ++comm->shared->joined;
  if (!comm->blocking) return ncclInProgress;
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) std::this_thread::yield(), ncclCommGetAsyncError(comm, &state);
  return state;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  CALL_OF_LIBRARY(ncclResult_t);
  if (!comm) return ncclInvalidArgument;
  if (comm->state == State::destroyed || comm->state == State::aborted)
    return refuse(comm, obstacle(comm, "ncclCommGetAsyncError"));
  *state = ncclSuccess;
  if (comm->shared->broken.load() == 2) return *state = ncclInvalidUsage, ncclSuccess;
  if (comm->left) return *state = ncclRemoteError, ncclSuccess;
  std::lock_guard lock(comm->mutex);
  const State now = comm->state;
  if (now == State::ready || now == State::finalized) return ncclSuccess;
  *state = ncclInProgress;
  const bool may = now == State::joining      ? comm->shared->joined == comm->size
                   : now == State::finalizing ? comm->turn == comm->tickets
                                              : true;
  if (!may || --comm->looks > 0) return ncclSuccess;
  for (const auto& work : std::exchange(comm->held, {})) work();
  comm->state = now == State::finalizing ? State::finalized : State::ready;
  *state = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  CALL_OF_LIBRARY(ncclResult_t);
  if (const std::string no = obstacle(comm, "ncclCommFinalize"); !no.empty()) return refuse(comm, no);
  std::lock_guard lock(comm->mutex);
  if (!comm->registered.empty())
    return refuse(comm, text("ncclCommFinalize with %zu buffers registered", comm->registered.size()));
  comm->state = State::finalizing, comm->looks = 1 + int(comm->random() % kMostLooks);
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  CALL_OF_LIBRARY(ncclResult_t);
  if (comm->state != State::finalized)
    return refuse(comm,
                  "ncclCommDestroy of a communicator that does not block, before ncclCommFinalize is done");
  return comm->state = State::destroyed, ncclSuccess;
}

// What waits on the GPU goes on, without having moved anything.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  CALL_OF_LIBRARY(ncclResult_t);
  if (comm->state == State::destroyed || comm->state == State::aborted)
    return refuse(comm, obstacle(comm, "ncclCommAbort"));
  std::lock_guard lock(comm->mutex);
  comm->held.clear();
  comm->state = State::aborted, comm->me().aborted = 1;
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, size_t bytes, void** handle) {
  CALL_OF_LIBRARY(ncclResult_t);
  if (const std::string no = obstacle(comm, "ncclCommRegister"); !no.empty()) return refuse(comm, no);
  const DeviceMemory::Piece* piece = device_memory().find(buffer, nullptr);
  if (!piece || piece->device != comm->device || !device_memory().holds(buffer, bytes))
    return refuse(comm, "ncclCommRegister of what is no memory of its GPU");
  std::lock_guard lock(comm->mutex);
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

ncclResult_t ncclGroupStart() {
  CALL_OF_LIBRARY(ncclResult_t);
  return ++depth, ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  CALL_OF_LIBRARY(ncclResult_t);
  if (depth == 0) return refuse(nullptr, "ncclGroupEnd without ncclGroupStart");
  return --depth > 0 ? ncclSuccess : launch();
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::all_gather, in, out, count, type, ncclSum, 0}});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t by,
                               ncclComm_t comm, cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::reduce_scatter, in, out, count, type, by, 0}});
}
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t by,
                           ncclComm_t comm, cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::all_reduce, in, out, count, type, by, 0}});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::broadcast, in, out, count, type, ncclSum, root}});
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t by,
                        int root, ncclComm_t comm, cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::reduce, in, out, count, type, by, root}});
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::send, in, nullptr, count, type, ncclSum, peer}});
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::recv, nullptr, out, count, type, ncclSum, peer}});
}

}  // extern "C"
