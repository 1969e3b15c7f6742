// Opens the segments of other ranks: each rank's handles are exchanged over the CPU transport.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "comm/from_peer.h"
#include "comm/ipc/ipc.h"
#include "comm/ipc/link.h"

namespace cleave::comm {

struct IpcLink::Offer {
  int64_t pid = 0, fd = -1;  // of the words' memory
  cudaIpcMemHandle_t segment{};
};

namespace {

// Slot size: waits and signals of a chunk take microseconds, which should be small compared with its copies.
constexpr int64_t kSlotBytes = int64_t{8} << 20;
constexpr int64_t kWhole = int64_t{2} << 20;  // CUDA exports smaller ones with their neighbors

template <class Value>
Tensor bytes_of(Value& value) {
  return {&value, DType::uint8, {int64_t(sizeof value)}, MemoryKind::host};
}

// Stores the message of an exception from `attempt`.
template <class Attempt>
void note_failure(std::string& problem, Attempt attempt) {
  if (!problem.empty()) return;
  try {
    attempt();
  } catch (const Error& e) {
    problem = e.what();
  }
}

// Collective: returns the problem of the first rank that has one, on all ranks; otherwise empty.
std::string first_problem(Group& group, const Waiting& w, const std::string& problem) {
  const std::vector<int64_t> codes = group.exchange(w, problem.empty() ? 0 : 1);
  const auto bad = std::find(codes.begin(), codes.end(), 1);
  if (bad == codes.end()) return {};
  char text[512] = {};
  problem.copy(text, sizeof text - 1);
  const int rank = int(bad - codes.begin());
  group.broadcast(w, {text, DType::uint8, {int64_t(sizeof text)}, MemoryKind::host}, rank);
  return fmt::format("rank {}: {}", group.ranks()[size_t(rank)], text_from_peer(text));
}

}  // namespace

IpcLink::Offer IpcLink::offer() const { return {getpid(), words_.fd(), own_.handle()}; }

void IpcLink::open(int index, const cudaIpcMemHandle_t& handle) {
  opened_.push_back(IpcMemory::open(shape_.device, handle));
  segments_[size_t(index)] = opened_.back().data();
}

int64_t IpcLink::room(int64_t bytes) { return round_up(std::max<int64_t>(bytes, 1), kWhole); }

std::unique_ptr<IpcLink> IpcLink::among(Group& group, const Waiting& w, int rank, int device) {
  const int size = group.size();
  std::string problem;
  Offer mine;
  IpcMemory segment;
  IpcWords words;
  note_failure(problem, [&] {
    segment = IpcMemory::make(device, 2 * kSlotBytes);
    if (rank == 0) words = IpcWords::make(size);
    mine = {getpid(), rank == 0 ? words.fd() : -1, segment.handle()};
  });
  problem = first_problem(group, w, problem);
  require(problem.empty(), Exit::usage, "{}", problem);
  std::vector<Offer> offers(static_cast<size_t>(size));
  const Tensor all(offers.data(), DType::uint8, {int64_t(offers.size() * sizeof(Offer))}, MemoryKind::host);
  group.all_gather(w, all, bytes_of(mine), {0, int64_t(sizeof mine)});
  std::unique_ptr<IpcLink> link;
  note_failure(problem, [&] {
    if (rank != 0) words = IpcWords::open(size, int(offers[0].pid), int(offers[0].fd));
    link.reset(new IpcLink(group, {all_ranks(size), rank, device, kSlotBytes, 2}, std::move(words),
                           std::move(segment)));
    for (int r = 0; r < size; ++r)
      if (r != rank) link->open(r, offers[size_t(r)].segment);
  });
  problem = first_problem(group, w, problem);
  if (problem.empty()) return link;
  if (link) link->hang_up();
  group.barrier(w);  // also joins ranks that could not open the words
  for (int r = 0; link && r < size; ++r) link->words_.closed(r).store(1);
  fail(Exit::usage, "{}", problem);
}

std::unique_ptr<IpcLink> IpcLink::to(Group& group, const Waiting& w, int peer, int device, int64_t bytes) {
  IpcMemory segment = IpcMemory::make(device, room(bytes));
  std::unique_ptr<IpcLink> link(
      new IpcLink(group, {{w.rank, peer}, 0, device, room(bytes), 1}, IpcWords::make(2), std::move(segment)));
  Offer mine = link->offer();
  group.send(w, bytes_of(mine), peer);
  return link;
}

std::unique_ptr<IpcLink> IpcLink::from(Group& group, const Waiting& w, int peer, int device, int64_t bytes) {
  Offer theirs;
  group.recv(w, bytes_of(theirs), peer);
  std::unique_ptr<IpcLink> link(new IpcLink(group, {{peer, w.rank}, 1, device, room(bytes), 1},
                                            IpcWords::open(2, int(theirs.pid), int(theirs.fd)), IpcMemory()));
  link->open(0, theirs.segment);
  return link;
}

}  // namespace cleave::comm
