#include "launcher/board.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/from_peer.h"
#include "comm/rendezvous/wire.h"
#include "core/error.h"
#include "core/printable.h"
#include "core/range.h"

namespace cleave::launcher {

// New shared memory is zero.
struct Board::Entry {
  // Offer of the rank: process, descriptor and size; `offered` is written last.
  std::atomic<int32_t> offered;
  int32_t pid, fd;
  int64_t bytes;
  std::atomic<int32_t> held_fd;  // descriptor of the launcher, plus one
  std::atomic<int32_t> waits;    // attempt that the rank left, plus one
};

struct Board::Layout {
  std::atomic<int32_t> attempt;
  int32_t first_attempt;
  std::atomic<int64_t> lost_at;
  std::atomic<int64_t> step, evaluation;  // Reported
  char cause[1000];
};

namespace {

constexpr auto kLook = std::chrono::milliseconds(5);

size_t bytes_of(size_t layout, size_t entry, int world) {
  return round_up(int64_t(layout), 64) + size_t(world) * entry;
}

}  // namespace

Board::Board(int world, int attempt) : world_(world), launcher_(getpid()) {
  memory_ = comm::SharedMemory::create(bytes_of(sizeof(Layout), sizeof(Entry), world));
  layout().first_attempt = attempt;
  layout().attempt = attempt;
  held_.resize(size_t(world));
}

Board::Board(const std::string& place, int rank, int world) : world_(world), rank_(rank) {
  const size_t dot = std::min(place.find('.'), place.size());
  const auto pid = comm::wire::whole_number(place.substr(0, dot));
  const auto fd = comm::wire::whole_number(place.substr(std::min(dot + 1, place.size())));
  require(pid && fd, Exit::usage, "CLEAVE_BOARD: expected PID.FD (got {}); unset it", in_quotes(place));
  launcher_ = int(*pid);
  memory_ = comm::SharedMemory::open(launcher_, int(*fd), bytes_of(sizeof(Layout), sizeof(Entry), world));
  memory_.close_fd();
}

std::string Board::place() const { return fmt::format("{}.{}", launcher_, memory_.fd()); }

Board::Layout& Board::layout() const { return *reinterpret_cast<Layout*>(memory_.data()); }

Board::Entry& Board::entry(int rank) const {
  return reinterpret_cast<Entry*>(memory_.data() + round_up(int64_t(sizeof(Layout)), 64))[rank];
}

int Board::attempt() const { return layout().attempt; }
int Board::first_attempt() const { return layout().first_attempt; }

bool Board::holds_all() const {
  for (int r = 0; r < world_; ++r)
    if (entry(r).held_fd == 0) return false;
  return true;
}

void Board::collect() {
  for (int r = 0; r < world_; ++r) {
    Entry& e = entry(r);
    if (e.offered == 0 || e.held_fd != 0) continue;
    try {
      held_[size_t(r)] = comm::SharedMemory::open(e.pid, e.fd, size_t(e.bytes));
      e.held_fd = held_[size_t(r)].fd() + 1;
    } catch (const Error&) {  // the process ended; its successor offers again
      e.offered = 0;
    }
  }
}

void Board::begin_attempt(const Loss& loss) {
  Layout& l = layout();
  const bool first = l.lost_at == 0;
  std::string cause = (first ? "" : comm::text_from_peer(l.cause) + ", ") + loss.cause;
  cause.resize(std::min(cause.size(), sizeof(l.cause) - 1));
  std::memcpy(l.cause, cause.c_str(), cause.size() + 1);
  if (first) l.lost_at = loss.when;
  ++l.attempt;
}

void Board::end() { layout().attempt = kEnded; }

bool Board::waits(int rank) const { return entry(rank).waits == attempt() + 1; }

void Board::offer(const comm::SharedMemory& state) {
  Entry& e = entry(rank_);
  if (e.offered != 0) return;
  e.pid = getpid(), e.fd = state.fd(), e.bytes = int64_t(state.bytes());
  e.offered = 1;
}

comm::SharedMemory Board::held() const {
  const Entry& e = entry(rank_);
  return e.held_fd == 0 ? comm::SharedMemory()
                        : comm::SharedMemory::open(launcher_, e.held_fd - 1, size_t(e.bytes));
}

int Board::wait_after(int attempt) {
  entry(rank_).waits = attempt + 1;
  while (this->attempt() == attempt) std::this_thread::sleep_for(kLook);
  return this->attempt();
}

Loss Board::take_loss() {
  Layout& l = layout();
  const std::string cause = comm::text_from_peer(l.cause);
  return {cause, l.lost_at.exchange(0)};
}

Reported Board::reported() const { return {layout().step, layout().evaluation}; }

void Board::set_reported(Reported reported) {
  layout().step = reported.step, layout().evaluation = reported.evaluation;
}

int64_t Board::now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace cleave::launcher
