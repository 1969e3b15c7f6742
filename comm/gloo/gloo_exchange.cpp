#include "comm/gloo/gloo_exchange.h"

#include <gloo/common/error.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <thread>

namespace cleave::comm {
namespace {

// Time that a rank waits, before it gives up, to hear which ranks are in the call.
constexpr auto kRollCall = std::chrono::milliseconds(500);

bool is_message(const Post& post) { return post.op == Collective::send || post.op == Collective::recv; }

// Gloo matches a message with its receive by this number. It includes size and type, so ranks in different
// calls never match; they reach the deadline instead of reading each other's data.
uint64_t tag_of(const Waiting& w, uint64_t step) {
  const bool message = is_message(w.post);
  const uint64_t op = uint64_t(message ? Collective::send : w.post.op);
  uint64_t tag = 0;
  // The ends of a message have different peers; those of a collective share a root and an operation.
  const uint64_t root = message ? 0 : uint64_t(w.post.peer + 1);
  for (uint64_t part :
       {w.number, op, uint64_t(w.post.dtype), uint64_t(w.post.numel), step, root, uint64_t(w.post.by)}) {
    tag = (tag ^ part) + 0x9e3779b97f4a7c15ull;  // splitmix64
    tag = (tag ^ (tag >> 30)) * 0xbf58476d1ce4e5b9ull;
    tag = (tag ^ (tag >> 27)) * 0x94d049bb133111ebull;
    tag ^= tag >> 31;
  }
  return tag;
}

// Order of calls that a call is numbered in.
std::string order_of(const Waiting& w) {
  const int from = w.post.op == Collective::send ? w.rank : w.post.peer;
  const int to = w.post.op == Collective::send ? w.post.peer : w.rank;
  return is_message(w.post) ? fmt::format("{}-{}", from, to) : "all";
}

// "ORDER NUMBER OP TYPE PEER COUNT BY " for each of a rank's calls.
std::string encoded(const Waiting& w) {
  return fmt::format("{} {} {} {} {} {} {} ", order_of(w), w.number, int(w.post.op), int(w.post.dtype),
                     w.post.peer, w.post.numel, int(w.post.by));
}

// The call of another rank with the number of `w` in its order; empty if the text has none, or is malformed.
std::optional<Post> call_in(const std::string& text, const Waiting& w) {
  std::istringstream in(text);
  std::string order;
  uint64_t number = 0;
  int op = 0, dtype = 0, peer = 0, by = 0;
  int64_t numel = 0;
  while (in >> order >> number >> op >> dtype >> peer >> numel >> by) {
    if (op < 0 || op >= kCollectives || dtype < 0 || dtype > int(DType::fp8_e5m2)) return {};
    if (number == w.number && order == order_of(w))
      return Post{Collective(op), DType(dtype), peer, numel, Reduction(by)};
  }
  return {};
}

bool alike(const Post& a, const Post& b) {
  return is_message(a) ? is_message(b) && a.numel == b.numel && a.dtype == b.dtype : a == b;
}

// Tests a transfer that no thread waits for any more.
bool arrived(gloo::transport::UnboundBuffer& buffer) {
  try {
    return buffer.waitRecv(nullptr, std::chrono::milliseconds(1));
  } catch (const gloo::Exception&) {
    return false;
  }
}

}  // namespace

void GlooWires::poison(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (!reason_.empty()) return;
  reason_ = reason;
  for (GlooExchange* e : active_) e->abort();
}

std::string GlooWires::reason() const {
  std::lock_guard lock(mutex_);
  return reason_;
}

void GlooWires::throw_if_poisoned(const Waiting& w) {
  std::lock_guard lock(mutex_);
  require(difference_.empty(), Exit::internal, "{}", difference_);
  if (!reason_.empty()) fail(Exit::rank_lost, "{} was aborted: {}", describe(w), reason_);
}

std::string GlooWires::key_of_calls(int rank) const { return fmt::format("{}/calls/{}", key, rank); }

std::string GlooWires::difference(const Waiting& w) {
  store.set(key_of_calls(w.rank), encoded(w));
  return difference_of_others(w);
}

// Each rank asks a few others: if the calls of a group differ, they differ between some neighbors. All keys
// exist, so the store answers at once.
std::string GlooWires::difference_of_others(const Waiting& w) {
  constexpr int kAsked = 8;
  std::vector<int> others;
  const int size = int(labels.size());
  for (int i = 1; i <= std::min(kAsked, size - 1); ++i) others.push_back((w.rank + i) % size);
  if (is_message(w.post)) others = {w.post.peer};
  for (const int other : others) {
    const auto text = store.get(key_of_calls(other), Clock::now() + kRollCall);
    const auto post = text ? call_in(*text, w) : std::nullopt;
    if (post && !alike(*post, w.post)) return mismatch_report(w, other, *post);
  }
  return {};
}

// Copies the calls, because an exchange may end during the questions.
void GlooWires::look() {
  struct Slow {
    std::string group, what;
    std::vector<int> ranks;
    int rank;
    uint64_t number;
    Post post;
    Waiting waiting() const { return {group, ranks, rank, number, what, post}; }
  };
  std::vector<Slow> slow;
  {
    std::lock_guard lock(mutex_);
    if (!reason_.empty()) return;
    const auto now = Clock::now();
    for (GlooExchange* e : active_) {
      if (now < e->compare_at_) continue;
      e->compare_at_ = now + (now - e->begin_);  // 1, 2, 4, ... seconds after the begin
      slow.push_back({e->group_name_, e->what_, e->ranks_, e->rank_, e->number_, e->post_});
    }
  }
  if (slow.empty()) return;
  std::string mine, differ;
  for (const Slow& s : slow) mine += encoded(s.waiting());
  try {
    store.set(key_of_calls(slow.front().rank), mine);
    for (const Slow& s : slow)
      if (differ.empty()) differ = difference_of_others(s.waiting());
    if (differ.empty()) return;
    {
      std::lock_guard lock(mutex_);
      if (reason_.empty()) difference_ = differ;
    }
    abort(differ);
  } catch (const Error&) {  // the store is gone, and the alarm rings
  }
}

GlooExchange::GlooExchange(Group& group, GlooWires& wires, const Waiting& w, uint64_t step)
    : group_(group),
      wires_(wires),
      group_name_(w.group),
      ranks_(w.ranks),
      rank_(w.rank),
      number_(w.number),
      what_(w.what),
      post_(w.post),
      tag_(tag_of(w, step)) {
  std::lock_guard lock(wires_.mutex_);
  wires_.active_.insert(this);
}

GlooExchange::~GlooExchange() {
  {
    std::lock_guard lock(wires_.mutex_);
    wires_.active_.erase(this);
  }
  // Gloo's thread may still work on an abandoned transfer. It never touches a closed connection again, so
  // closing makes the operands safe to free. The group was abandoned with the transfer, so the connection is
  // no longer needed.
  for (Transfer& t : transfers_)
    if (!t.done) wires_.context->getPair(t.peer)->close();
}

void GlooExchange::finish() {
  const auto until = group_.deadline();
  for (bool sends : {false, true})
    for (Transfer& t : transfers_)
      if (t.is_send == sends) wait(t, until);
}

void GlooExchange::abort() {
  for (Transfer& t : transfers_) t.is_send ? t.buffer->abortWaitSend() : t.buffer->abortWaitRecv();
}

void GlooExchange::start(Tensor t, int peer, bool is_send) {
  if (t.bytes() == 0) return;
  auto buffer = wires_.context->createUnboundBuffer(t.raw(), size_t(t.bytes()));
  gloo::transport::UnboundBuffer& b = *buffer;
  {
    std::lock_guard lock(wires_.mutex_);
    transfers_.push_back({peer, is_send, std::move(buffer)});
  }
  try {
    is_send ? b.send(peer, tag_) : b.recv(peer, tag_);
  } catch (const gloo::Exception&) {
    broken(peer, Clock::time_point::max());
  }
}

void GlooExchange::wait(Transfer& t, Clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  const auto limit = std::max(left, std::chrono::milliseconds(1));
  try {
    t.done = t.is_send ? t.buffer->waitSend(nullptr, limit) : t.buffer->waitRecv(nullptr, limit);
  } catch (const gloo::Exception&) {
    broken(t.peer, until);
  }
  if (!t.done) wires_.throw_if_poisoned(waiting());
  CHECK(t.done, "gloo: a transfer ended without a result");
}

// The connection to `peer` failed, or the deadline passed. The first rank at its deadline closes the
// connections of all, so that all ranks in this call arrive here at about the same time and report it.
void GlooExchange::broken(int peer, Clock::time_point until) {
  const Waiting w = waiting();
  wires_.store.set(waiting_key(rank_), "");
  if (until <= Clock::now())
    group_.give_up(w, deadline_report(w, roll_call(), group_.options().timeout), Exit::rank_lost);
  const auto patience = Clock::now() + 2 * kRollCall;  // the rank with the reason may be about to report it
  while (wires_.reason().empty() && Clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  group_.give_up(w, fmt::format("{}: the connection to {} broke", describe(w), wires_.labels[size_t(peer)]),
                 Exit::rank_lost);
}

std::string GlooExchange::waiting_key(int rank) const {
  return fmt::format("{}/waits/{}/{}", wires_.key, number_, rank);
}

// Ranks in this call. A rank with missing data may itself wait for a third one, so all ranks are asked. A
// rank that neither answers nor owes data may have completed the call; it is named only if no other is.
std::vector<bool> GlooExchange::roll_call() {
  const auto until = Clock::now() + kRollCall;
  std::vector<bool> here(ranks_.size()), owes(ranks_.size());
  for (Transfer& t : transfers_)
    if (!t.is_send) (t.done || arrived(*t.buffer) ? here : owes)[size_t(t.peer)] = true;
  bool somebody_owes = false;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    here[r] = here[r] || int(r) == rank_ || wires_.store.get(waiting_key(int(r)), until).has_value();
    somebody_owes |= owes[r] && !here[r];
  }
  for (size_t r = 0; r < ranks_.size() && somebody_owes; ++r) here[r] = here[r] || !owes[r];
  return here;
}

}  // namespace cleave::comm
