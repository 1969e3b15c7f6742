// Execution of a group's parts on the GPU: ranks publish the place of their input, compute from
// each other's, and write when all have computed. Everything that NCCL may delay is delayed. Sums
// are in rank order, which NCCL does not promise.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "comm/reduce.h"
#include "tests/cuda_interpreter/device_memory.h"
#include "tests/cuda_interpreter/nccl_communicator.h"

namespace nccl_standin {

using interpreter::Defect, interpreter::device_memory, interpreter::DeviceMemory, interpreter::streams;

void* map_file(int process, int file, size_t bytes, int protection) {
  const int fd = open(text("/proc/%d/fd/%d", process, file).c_str(),
                      (protection & PROT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* at = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
  close(fd);
  return at == MAP_FAILED ? nullptr : at;
}

namespace {

// Collectives of a GPU's communicators, of which one runs at a time, as if it filled the GPU. Without
// NCCL_LAUNCH_ORDER_IMPLICIT, the next one is any that its stream has reached.
class Occupant {
 public:
  static Occupant& of(int device) {
    static std::mutex mutex;
    static std::map<int, Occupant> all;
    std::lock_guard lock(mutex);
    return all[device];
  }
  uint64_t line_up() { return launched_++; }
  bool may_enter(uint64_t number) const {
    const char* ordered = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    return !occupied_ && (!ordered || *ordered != '1' || done_ == number);
  }
  void enter() { occupied_ = true; }
  void leave() {
    ++done_;
    occupied_ = false;
  }

 private:
  std::atomic<uint64_t> launched_{0}, done_{0};
  std::atomic<bool> occupied_{false};
};

// Returns the GPU memory of another process; null if it has ended.
const std::byte* memory_of(int process, int file) {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, const std::byte*> known;
  if (process == getpid()) return device_memory().begin();
  std::lock_guard lock(mutex);
  const std::byte*& at = known[{process, file}];
  if (!at) at = static_cast<const std::byte*>(map_file(process, file, DeviceMemory::kSpan, PROT_READ));
  return at;
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

std::string describe(const Said& s) {
  return text("%s of %zu elements of type %d%s%s, part %d of a group of %d", kOps[int(s.op)], s.count,
              int(s.type), s.root >= 0 ? text(", root %d", s.root).c_str() : "",
              s.by != ncclNumOps ? text(", reduced by %d", int(s.by)).c_str() : "", s.position + 1, s.parts);
}

// Returns an empty text, or the difference between two ranks in the same call or between two ends
// of a message.
std::string difference(const Said& a, const Said& b) {
  const bool pair = pairwise(a.op);
  const bool same = pair ? a.count == b.count && a.type == b.type
                         : a.op == b.op && a.count == b.count && a.type == b.type && a.by == b.by &&
                               a.root == b.root && a.position == b.position && a.parts == b.parts;
  if (!same) return "not the same call";
  if (pair || (a.place.kind == Place::plain && b.place.kind == Place::plain)) return {};
  if (a.place.kind == Place::plain || b.place.kind == Place::plain)
    return "its buffers are registered on one rank only";
  if (a.place.kind != b.place.kind) return "its registered buffers are of two allocators";
  if (a.place.in != b.place.in || a.place.out != b.place.out)
    return "its buffers do not begin at the same place in their registered memory";
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
  Occupant* occupant = nullptr;  // of collectives
  uint64_t number = 0;

  Said& said(const Part& p) const {
    Member& me = comm->me();
    const uint64_t slot = p.number % kSlots;
    if (p.op == Op::send) return me.sends[p.peer][slot];
    return p.op == Op::recv ? me.recvs[p.peer][slot] : me.collectives[slot];
  }
  // Returns the same call as rank r published it; for a message, its other end.
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

  void publish();
  bool met();
  void compute();
  void leave(const Part& p, int r);
  bool computed() const;
  void write();
};

// From here on, other ranks may read this rank's input.
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
      s.place = place_of(comm, p);
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

// NCCL does not define the result: it may wait forever or move any data.
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

// True when no rank reads this rank's input any more, after a random number of queries.
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
  if (occupant) occupant->leave();
}

}  // namespace

void give(ncclComm_t comm, Stream* stream, std::vector<Part> parts) {
  auto group = std::make_shared<Group>();
  {
    std::lock_guard lock(comm->mutex);
    group->comm = comm, group->parts = std::move(parts), group->ticket = comm->tickets++;
    group->delay = int(comm->random() % 20);
    for (Part& p : group->parts)
      p.number = p.op == Op::send   ? comm->sent[p.peer]++
                 : p.op == Op::recv ? comm->received[p.peer]++
                                    : comm->collectives++;
  }
  const std::string name = text("NCCL's %s", kOps[int(group->parts[0].op)]);
  const auto wait = [&](const char* what, std::function<bool()> ready) {
    streams().give(stream, {name + what, {}, {}, std::move(ready), "nccl"});
  };
  const auto run = [&](auto f) {
    streams().give(stream, {name, [f](std::mt19937_64&) { f(); }, {}, {}, "nccl"});
  };
  const auto is_message = [](const Part& p) { return pairwise(p.op); };
  if (!std::all_of(group->parts.begin(), group->parts.end(), is_message)) {
    group->occupant = &Occupant::of(comm->device);
    group->number = group->occupant->line_up();
  }
  const auto begins = [comm, group] {
    return comm->turn.load() == group->ticket &&
           (!group->occupant || group->occupant->may_enter(group->number));
  };
  const auto enter = [group](std::mt19937_64&) {
    if (group->occupant) group->occupant->enter();
  };
  streams().give(stream, {name + ", after the communicator's earlier calls and until the GPU has room",
                          enter,
                          {},
                          begins,
                          "nccl"});
  run([group] { group->publish(); });
  wait(", until all ranks are there", [group] { return group->met(); });
  run([group] { group->compute(); });
  wait(", until all ranks are done", [group] { return group->computed() && --group->delay < 0; });
  run([group] { group->write(); });
}

}  // namespace nccl_standin
