#include "comm/gloo_transport.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <set>
#include <thread>

#include "comm/reduce.h"

namespace cleave {
namespace {

using gloo::transport::UnboundBuffer;

// Data of one call is exchanged in pieces, which bounds the staging memory of a sum.
constexpr int64_t kPieceBytes = 4 << 20;

// How long a rank that gives up waits to hear who else is in the call.
constexpr auto kRollCall = std::chrono::milliseconds(500);

// Our store as Gloo wants to see it, with the keys of one group apart from all others.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(cleave::Store& store, std::string prefix, Clock::time_point deadline)
      : store_(store), prefix_(std::move(prefix)), deadline_(deadline) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(prefix_ + key, {data.data(), data.size()});
  }
  std::vector<char> get(const std::string& key) override {
    const auto value = store_.get(prefix_ + key, deadline_);
    require(value.has_value(), Exit::rank_lost,
            "a rank did not give its address for {}{} before the deadline", prefix_, key);
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  cleave::Store& store_;
  const std::string prefix_;
  const Clock::time_point deadline_;
};

// Gloo matches a message with its receive by this number. It covers the size and type, so that ranks in
// different calls never match and meet the deadline instead of each other's data.
uint64_t tag_of(const Waiting& w, uint64_t step) {
  const bool message = w.post.op == Collective::send || w.post.op == Collective::recv;
  const uint64_t op = uint64_t(message ? Collective::send : w.post.op);
  uint64_t tag = 0;
  for (uint64_t part : {w.number, op, uint64_t(w.post.dtype), uint64_t(w.post.numel), step}) {
    tag = (tag ^ part) + 0x9e3779b97f4a7c15ull;  // splitmix64
    tag = (tag ^ (tag >> 30)) * 0xbf58476d1ce4e5b9ull;
    tag = (tag ^ (tag >> 27)) * 0x94d049bb133111ebull;
    tag ^= tag >> 31;
  }
  return tag;
}

class GlooGroup final : public Group {
 public:
  GlooGroup(GlooMembers members, std::shared_ptr<cleave::Store> store, CommOptions options,
            std::shared_ptr<Alarm> alarm, std::shared_ptr<gloo::transport::Device> device)
      : Group(members.name, members.ranks, options),
        members_(std::move(members)),
        store_(std::move(store)),
        alarm_(std::move(alarm)),
        device_(std::move(device)) {
    if (size() > 1) connect_all();
    alarm_->add(this);
  }
  ~GlooGroup() override { alarm_->remove(this); }

  void all_gather(const Waiting& w, Tensor full, Tensor shard, Range piece) override {
    throw_if_poisoned(w);
    const Tensor mine = shard.slice(piece);
    Exchange exchange(*this, w, 0);
    for (int r = 0; r < size(); ++r)
      if (r != w.rank) exchange.recv(full.slice(piece.shifted(r * shard.numel())), r);
    for (int r = 0; r < size(); ++r)
      if (r != w.rank) exchange.send(mine, r);
    const Tensor to = full.slice(piece.shifted(w.rank * shard.numel()));
    if (to.raw() != mine.raw()) std::memcpy(to.raw(), mine.raw(), size_t(mine.bytes()));
    exchange.finish();
  }

  void reduce_scatter(const Waiting& w, Tensor shard, Tensor full, Range piece) override {
    throw_if_poisoned(w);
    uint64_t step = 0;
    const int64_t most = kPieceBytes / size_of(full.dtype());
    for (int64_t at = piece.begin; at < piece.end; at += most, ++step) {
      const Range c{at, std::min(piece.end, at + most)};
      scatter_sum(w, step, shard.slice(c), [&](int r) { return full.slice(c.shifted(r * shard.numel())); });
    }
  }

  void all_reduce(const Waiting& w, Tensor t) override {
    throw_if_poisoned(w);
    uint64_t step = 0;
    const int64_t most = kPieceBytes / size_of(t.dtype()) * size();
    for (int64_t at = 0; at < t.numel(); at += most) {
      const Tensor c = t.slice({at, std::min(t.numel(), at + most)});
      const auto part_of = [&](int r) { return c.slice(part(c.numel(), size(), r)); };
      scatter_sum(w, step++, part_of(w.rank), part_of);
      Exchange exchange(*this, w, step++);
      for (int r = 0; r < size(); ++r)
        if (r != w.rank) exchange.recv(part_of(r), r);
      for (int r = 0; r < size(); ++r)
        if (r != w.rank) exchange.send(part_of(w.rank), r);
      exchange.finish();
    }
  }

  void broadcast(const Waiting& w, Tensor t, int root) override {
    throw_if_poisoned(w);
    Exchange exchange(*this, w, 0);
    if (w.rank != root) exchange.recv(t, root);
    for (int r = 0; r < size(); ++r)
      if (w.rank == root && r != root) exchange.send(t, r);
    exchange.finish();
  }

  void barrier(const Waiting& w) override { exchange(w, 0); }

  void send(const Waiting& w, Tensor t, int to) override {
    throw_if_poisoned(w);
    // Gloo's send ends when the receiver takes the data; a copy and a worker of its own free the caller.
    const auto* data = static_cast<const std::byte*>(t.raw());
    auto copy = std::make_shared<std::vector<std::byte>>(data, data + t.bytes());
    const Tensor view(copy->data(), t.dtype(), t.shape());
    auto exchange = std::make_shared<Exchange>(*this, w, 0);
    exchange->send(view, to);
    outbox_.enqueue([this, copy, exchange] {
      try {
        exchange->finish();
      } catch (const Error& e) {
        abort(e.what());
      }
    });
  }

  void recv(const Waiting& w, Tensor t, int from) override {
    throw_if_poisoned(w);
    Exchange exchange(*this, w, 0);
    exchange.recv(t, from);
    exchange.finish();
  }

  std::vector<int64_t> exchange(const Waiting& w, int64_t mine) override {
    throw_if_poisoned(w);
    std::vector<int64_t> all(static_cast<size_t>(size()));
    Waiting here = w;
    here.post.numel = exchanges_++;  // several exchanges of one call must not match each other
    all_gather(here, Tensor(all.data(), DType::int64, {size()}), Tensor(&mine, DType::int64, {1}), {0, 1});
    return all;
  }

  std::shared_ptr<Group> form(const Waiting& w, const std::vector<int>& members,
                              const std::string& name) override {
    const int me = int(std::find(members.begin(), members.end(), w.rank) - members.begin());
    GlooMembers next{
        name, {}, {}, me, members_.address, fmt::format("{}/{}.{}", members_.key, w.number, members[0])};
    for (int m : members) {
      next.ranks.push_back(ranks()[size_t(m)]);
      next.labels.push_back(members_.labels[size_t(m)]);
    }
    return std::make_shared<GlooGroup>(std::move(next), store_, options(), alarm_, device_);
  }

  void poison(const std::string& reason) override {
    std::lock_guard lock(mutex_);
    if (!reason_.empty()) return;
    reason_ = reason;
    for (Exchange* e : active_) e->abort();
  }

  void abort(const std::string& reason) override {
    poison(reason);
    store_->failed(reason);  // the other ranks have no memory in common with this one
  }

  [[noreturn]] void give_up(const Waiting& w, const std::string& report, Exit exit) override {
    throw_if_poisoned(w);
    abort(report);
    fail(exit, "{}", report);
  }

 private:
  // The messages of one step of a call. The operands must live until finish() returned or threw.
  class Exchange {
   public:
    Exchange(GlooGroup& group, const Waiting& w, uint64_t step)
        : group_(group),
          group_name_(w.group),
          ranks_(w.ranks),
          rank_(w.rank),
          number_(w.number),
          what_(w.what),
          post_(w.post),
          tag_(tag_of(w, step)) {
      std::lock_guard lock(group_.mutex_);
      group_.active_.insert(this);
    }
    ~Exchange() {
      std::lock_guard lock(group_.mutex_);
      group_.active_.erase(this);
    }
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

    void send(Tensor t, int to) { start(t, to, true); }
    void recv(Tensor t, int from) { start(t, from, false); }

    // Waits for everything, receives first.
    void finish() {
      const auto until = group_.deadline();
      for (bool sends : {false, true})
        for (Transfer& t : transfers_)
          if (t.is_send == sends) wait(t, until);
    }

    // With the group's mutex held.
    void abort() {
      for (Transfer& t : transfers_) t.is_send ? t.buffer->abortWaitSend() : t.buffer->abortWaitRecv();
    }

   private:
    struct Transfer {
      int peer;
      bool is_send;
      std::unique_ptr<UnboundBuffer> buffer;
      bool done = false;
    };

    Waiting waiting() const { return {group_name_, ranks_, rank_, number_, what_, post_}; }

    void start(Tensor t, int peer, bool is_send) {
      if (t.bytes() == 0) return;
      auto buffer = group_.context_->createUnboundBuffer(t.raw(), size_t(t.bytes()));
      UnboundBuffer& b = *buffer;
      {
        std::lock_guard lock(group_.mutex_);
        transfers_.push_back({peer, is_send, std::move(buffer)});
      }
      try {
        is_send ? b.send(peer, tag_) : b.recv(peer, tag_);
      } catch (const gloo::Exception&) {
        broken(peer, {});
      }
    }

    void wait(Transfer& t, Clock::time_point until) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      const auto limit = std::max(left, std::chrono::milliseconds(1));
      try {
        t.done = t.is_send ? t.buffer->waitSend(nullptr, limit) : t.buffer->waitRecv(nullptr, limit);
      } catch (const gloo::Exception&) {
        broken(t.peer, until);
      }
      if (!t.done) group_.throw_if_poisoned(waiting());
      CHECK(t.done, "gloo: a transfer ended without an end");
    }

    // The connection to `peer` failed, or time is up. The first rank whose time is up closes the connections
    // of all, so that everybody who waits in this call comes here at about the same time and says so.
    [[noreturn]] void broken(int peer, Clock::time_point until) {
      const Waiting w = waiting();
      group_.store_->set(waiting_key(rank_), "");
      if (until > Clock::now()) {  // whoever knows the reason may be about to tell it
        const auto patience = Clock::now() + 2 * kRollCall;
        while (!group_.is_poisoned() && Clock::now() < patience)
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        group_.give_up(w, fmt::format("{}: the connection to {} broke", describe(w), group_.label(peer)),
                       Exit::rank_lost);
      }
      group_.give_up(w, deadline_report(w, roll_call(), group_.options().timeout), Exit::rank_lost);
    }

    std::string waiting_key(int rank) const {
      return fmt::format("{}/waits/{}/{}", group_.members_.key, number_, rank);
    }

    // Who is in this call. A rank whose data did not come may itself wait for a third one, so the ranks are
    // asked; one that neither answers nor owes data may have been through already, and is named only when
    // nobody else is.
    std::vector<bool> roll_call() {
      const auto until = Clock::now() + kRollCall;
      std::vector<bool> here(ranks_.size()), owes(ranks_.size());
      for (Transfer& t : transfers_)
        if (!t.is_send) (arrived(t) ? here : owes)[size_t(t.peer)] = true;
      bool somebody_owes = false;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        here[r] = here[r] || int(r) == rank_ || group_.store_->get(waiting_key(int(r)), until).has_value();
        somebody_owes |= owes[r] && !here[r];
      }
      for (size_t r = 0; r < ranks_.size() && somebody_owes; ++r) here[r] = here[r] || !owes[r];
      return here;
    }

    // Of a transfer that nobody waits for any more.
    static bool arrived(Transfer& t) {
      if (t.done) return true;
      try {
        return t.buffer->waitRecv(nullptr, std::chrono::milliseconds(1));
      } catch (const gloo::Exception&) {
        return false;
      }
    }

    GlooGroup& group_;
    const std::string group_name_;
    const std::vector<int> ranks_;
    const int rank_;
    const uint64_t number_;
    const std::string what_;
    const Post post_;
    const uint64_t tag_;
    std::list<Transfer> transfers_;
  };

  void connect_all() {
    context_ = std::make_shared<gloo::rendezvous::Context>(members_.rank, size());
    context_->setTimeout(options().timeout);
    GlooStore keys(*store_, members_.key + "/", deadline());
    try {
      context_->connectFullMesh(keys, device_);
    } catch (const gloo::Exception& e) {
      fail(Exit::rank_lost, "rank {} could not connect to the other ranks of group '{}' from {}: {}",
           members_.ranks[size_t(members_.rank)], name(), members_.address, e.what());
    }
  }

  // mine = the sum over ranks of what each holds as part_of(this rank); mine may be that part of this rank.
  template <class PartOf>
  void scatter_sum(const Waiting& w, uint64_t step, Tensor mine, PartOf part_of) {
    std::vector<std::byte> staging(size_t(mine.bytes() * (size() - 1)));
    std::vector<const std::byte*> sources;
    Exchange exchange(*this, w, step);
    std::byte* at = staging.data();
    for (int r = 0; r < size(); ++r) {
      if (r == w.rank) {
        sources.push_back(static_cast<const std::byte*>(part_of(r).raw()));
        continue;
      }
      exchange.recv(Tensor(at, mine.dtype(), {mine.numel()}), r);
      sources.push_back(at);
      at += mine.bytes();
    }
    for (int r = 0; r < size(); ++r)
      if (r != w.rank) exchange.send(part_of(r), r);
    exchange.finish();
    sum_in_order(mine.dtype(), mine.raw(), sources, mine.numel());
  }

  std::string label(int rank) const { return members_.labels[size_t(rank)]; }

  bool is_poisoned() {
    std::lock_guard lock(mutex_);
    return !reason_.empty();
  }

  void throw_if_poisoned(const Waiting& w) {
    std::lock_guard lock(mutex_);
    if (!reason_.empty()) fail(Exit::rank_lost, "{} was given up: {}", describe(w), reason_);
  }

  const GlooMembers members_;
  const std::shared_ptr<cleave::Store> store_;
  const std::shared_ptr<Alarm> alarm_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  int64_t exchanges_ = 0;
  std::mutex mutex_;
  std::set<Exchange*> active_;
  std::string reason_;
  Stream outbox_{Stream::Mode::worker};
};

}  // namespace

std::shared_ptr<Group> make_gloo_group(GlooMembers members, std::shared_ptr<Store> store, CommOptions options,
                                       std::shared_ptr<Alarm> alarm) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = members.address;
  std::shared_ptr<gloo::transport::Device> device;
  try {
    device = gloo::transport::tcp::CreateDevice(attributes);
  } catch (const gloo::Exception& e) {
    fail(Exit::usage, "gloo cannot use the address {} of this machine: {}", members.address, e.what());
  }
  return std::make_shared<GlooGroup>(std::move(members), std::move(store), options, std::move(alarm),
                                     std::move(device));
}

}  // namespace cleave
