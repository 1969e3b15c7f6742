// Ranks as threads of one process: a rank publishes a pointer to its data, everybody reads what it needs, and
// a last meeting tells that the pointers are no longer used. Nothing is copied on the way, except what a send
// leaves behind.
#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <numeric>
#include <thread>

#include "comm/order.h"
#include "comm/post.h"
#include "comm/reduce.h"

namespace cleave {
namespace {

// What the members of one group share.
class ThreadGroup {
 public:
  ThreadGroup(std::string name, std::vector<int> ranks, CommOptions options)
      : name_(std::move(name)),
        ranks_(std::move(ranks)),
        options_(options),
        posts_(ranks_.size()),
        data_(ranks_.size()),
        arrivals_(ranks_.size()),
        reading_(ranks_.size()) {}

  int size() const { return int(ranks_.size()); }
  const std::string& name() const { return name_; }
  const std::vector<int>& ranks() const { return ranks_; }
  const CommOptions& options() const { return options_; }
  Clock::time_point deadline() const { return Clock::now() + options_.timeout; }

  // Publishes this rank's call and pointer, and returns when all ranks have published theirs.
  void meet(const Waiting& waiting, std::byte* data) {
    std::unique_lock lock(mutex_);
    posts_[size_t(waiting.rank)] = waiting.post;
    data_[size_t(waiting.rank)] = data;
    // Of any two ranks the later one compares, so that every pair is compared while neither can have moved
    // on.
    const uint64_t mine = arrivals_[size_t(waiting.rank)] + 1;
    for (size_t r = 0; r < posts_.size(); ++r)
      if (arrivals_[r] == mine && !(posts_[r] == waiting.post)) {
        const std::string report = mismatch_report(waiting, int(r), posts_[r]);
        poison_locked(report);
        fail(Exit::internal, "{}", report);
      }
    arrive(lock, waiting, data ? Then::read : Then::part);
  }

  // After a meeting the ranks either read each other's data, until the next meeting, or part.
  enum class Then { read, part };

  // Returns when all ranks are here.
  void meet(const Waiting& waiting, Then then = Then::part) {
    std::unique_lock lock(mutex_);
    arrive(lock, waiting, then);
  }

  // Valid between two meetings.
  std::byte* data(int rank) const { return data_[size_t(rank)]; }

  void send(const Waiting& w, const std::byte* data, size_t bytes) {
    Message message{w.post, {data, data + bytes}};
    std::lock_guard lock(mutex_);
    throw_if_poisoned(w);
    mail_[{w.rank, w.post.peer}].push_back(std::move(message));
    changed_.notify_all();
  }

  void recv(const Waiting& w, std::byte* data, size_t bytes) {
    std::unique_lock lock(mutex_);
    auto& box = mail_[{w.post.peer, w.rank}];
    if (!changed_.wait_until(lock, deadline(), [&] { return poisoned_ || !box.empty(); })) {
      std::vector<bool> present(ranks_.size(), true);
      present[size_t(w.post.peer)] = false;
      const std::string report = deadline_report(w, present, options_.timeout);
      poison_locked(report);
      fail(Exit::rank_lost, "{}", report);
    }
    throw_if_poisoned(w);
    const Message message = std::move(box.front());
    box.pop_front();
    if (message.post.numel != w.post.numel || message.post.dtype != w.post.dtype) {
      const std::string report = mismatch_report(w, w.post.peer, message.post);
      poison_locked(report);
      fail(Exit::internal, "{}", report);
    }
    lock.unlock();
    std::memcpy(data, message.data.data(), bytes);
  }

  // Collective: the group of those that give the same color.
  std::shared_ptr<ThreadGroup> split(const Waiting& w, int color, int key, const std::string& name,
                                     int& new_rank) {
    {
      std::lock_guard lock(mutex_);
      if (colors_.empty()) colors_.resize(ranks_.size());
      colors_[size_t(w.rank)] = {color, key};
    }
    meet(w, nullptr);
    std::vector<int> members;
    for (int r = 0; r < size(); ++r)
      if (colors_[size_t(r)].first == color) members.push_back(r);
    std::stable_sort(members.begin(), members.end(),
                     [&](int a, int b) { return colors_[size_t(a)].second < colors_[size_t(b)].second; });
    new_rank = int(std::find(members.begin(), members.end(), w.rank) - members.begin());
    std::shared_ptr<ThreadGroup> group;
    {
      std::lock_guard lock(mutex_);
      auto& forming = forming_[color];
      if (!forming) {
        for (int& m : members) m = ranks_[size_t(m)];
        forming = std::make_shared<ThreadGroup>(name, members, options_);
        children_.push_back(forming);
      }
      group = forming;
    }
    meet(w);
    if (w.rank == 0) {
      std::lock_guard lock(mutex_);
      forming_.clear();
    }
    return group;
  }

  void poison(const std::string& reason) {
    std::lock_guard lock(mutex_);
    poison_locked(reason);
  }

  // Throws the report of a call that never became first in line of its communicator.
  [[noreturn]] void stuck_in_line(const Waiting& w) {
    std::lock_guard lock(mutex_);
    throw_if_poisoned(w);
    const std::string report =
        describe(w) + ": an earlier call of this group on this rank did not end in time";
    poison_locked(report);
    fail(Exit::rank_lost, "{}", report);
  }

 private:
  struct Message {
    Post post;
    std::vector<std::byte> data;
  };

  void arrive(std::unique_lock<std::mutex>& lock, const Waiting& w, Then then) {
    reading_[size_t(w.rank)] = false;
    const uint64_t mine = arrivals_[size_t(w.rank)] + 1;
    const auto all = [&] { return *std::min_element(arrivals_.begin(), arrivals_.end()) >= mine; };
    bool in_time = true;
    if (!poisoned_) {
      arrivals_[size_t(w.rank)] = mine;
      if (all()) reading_.assign(reading_.size(), then == Then::read);
      changed_.notify_all();
      in_time = changed_.wait_until(lock, deadline(), [&] { return poisoned_ || all(); });
      if (in_time && all()) return;
    }
    std::vector<bool> present;
    for (uint64_t a : arrivals_) present.push_back(a >= mine);
    if (!in_time) poison_locked(deadline_report(w, present, options_.timeout));
    // The caller is about to free what it published: let those finish who are still reading it.
    changed_.notify_all();
    changed_.wait(lock,
                  [&] { return std::none_of(reading_.begin(), reading_.end(), [](char r) { return r; }); });
    if (!in_time) fail(Exit::rank_lost, "{}", reason_);
    throw_if_poisoned(w);
  }

  void throw_if_poisoned(const Waiting& w) const {
    if (poisoned_) fail(Exit::rank_lost, "{} was given up: {}", describe(w), reason_);
  }

  void poison_locked(const std::string& reason) {
    if (poisoned_) return;
    poisoned_ = true;
    reason_ = reason;
    for (auto& child : children_)
      if (auto group = child.lock()) group->poison(reason);
    changed_.notify_all();
  }

  const std::string name_;
  const std::vector<int> ranks_;  // of the world
  const CommOptions options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Post> posts_;
  std::vector<std::byte*> data_;
  std::vector<uint64_t> arrivals_;  // meetings that each rank has come to
  std::vector<char> reading_;       // ranks that may be reading what others published
  std::map<std::pair<int, int>, std::deque<Message>> mail_;  // by sender and receiver
  std::vector<std::pair<int, int>> colors_;
  std::map<int, std::shared_ptr<ThreadGroup>> forming_;  // by color, during a split
  std::vector<std::weak_ptr<ThreadGroup>> children_;
  bool poisoned_ = false;
  std::string reason_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : Communicator(rank, group->size(), group->name()),
        group_(std::move(group)),
        sends_(size_t(size())),
        recvs_(size_t(size())) {}

  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    auto place = collectives_.join();
    const Waiting w = waiting(*place, {.op = Collective::barrier}, "making group '" + name + "'");
    if (!place->wait_first(group_->deadline())) group_->stuck_in_line(w);
    int new_rank = 0;
    auto group = group_->split(w, color, key, name, new_rank);
    return std::make_unique<ThreadCommunicator>(std::move(group), new_rank);
  }

  void abort(const std::string& reason) override { group_->poison(reason); }

 private:
  Waiting waiting(const Order::Place& place, const Post& post, std::string what) const {
    return {group_->name(), group_->ranks(), rank(), place.number(), std::move(what), post};
  }

  // Runs body(group, waiting) on the stream when all earlier calls of `order` are done. The task shares the
  // group, so it may outlive this communicator.
  template <class Body>
  void enqueue(Order& order, const Post& post, Stream& stream, const Call& call, Body body) {
    stream.enqueue([group = group_, place = order.join(), rank = rank(), post, what = call.what, body] {
      const Waiting w{group->name(), group->ranks(), rank, place->number(), std::string(what), post};
      if (!place->wait_first(group->deadline())) group->stuck_in_line(w);
      body(*group, w);
    });
  }

  void do_all_gather(Tensor full, Tensor shard, Range piece, Stream& stream, const Call& call) override {
    const Post post{Collective::all_gather, full.dtype(), -1, piece.size() * size()};
    enqueue(collectives_, post, stream, call, [=, r = rank()](ThreadGroup& g, const Waiting& w) {
      const Tensor mine = shard.slice(piece);
      g.meet(w, static_cast<std::byte*>(mine.raw()));
      for (int s = 0; s < g.size(); ++s) {
        const Tensor to = full.slice(piece.shifted(s * shard.numel()));
        if (s != r || to.raw() != mine.raw()) std::memcpy(to.raw(), g.data(s), size_t(to.bytes()));
      }
      g.meet(w);
    });
  }

  void do_reduce_scatter(Tensor shard, Tensor full, Range piece, Stream& stream, const Call& call) override {
    const Post post{Collective::reduce_scatter, full.dtype(), -1, piece.size() * size()};
    enqueue(collectives_, post, stream, call, [=, r = rank()](ThreadGroup& g, const Waiting& w) {
      g.meet(w, static_cast<std::byte*>(full.raw()));
      // Rank r alone reads the r-th slices, so it may overwrite its own in place.
      sum(g, shard.slice(piece), (r * shard.numel() + piece.begin) * size_of(full.dtype()));
      g.meet(w);
    });
  }

  void do_all_reduce(Tensor t, Stream& stream, const Call& call) override {
    enqueue(collectives_, {Collective::all_reduce, t.dtype(), -1, t.numel()}, stream, call,
            [=, r = rank()](ThreadGroup& g, const Waiting& w) {
              g.meet(w, static_cast<std::byte*>(t.raw()));
              const Range mine = part(t.numel(), g.size(), r);
              sum(g, t.slice(mine), mine.begin * size_of(t.dtype()));
              g.meet(w, ThreadGroup::Then::read);
              for (int s = 0; s < g.size(); ++s) {
                const Range range = part(t.numel(), g.size(), s);
                const int64_t offset = range.begin * size_of(t.dtype());
                const Tensor to = t.slice(range);
                if (s != r && to.bytes() > 0) std::memcpy(to.raw(), g.data(s) + offset, size_t(to.bytes()));
              }
              g.meet(w);
            });
  }

  static void sum(ThreadGroup& g, Tensor out, int64_t offset_bytes) {
    std::vector<const std::byte*> sources;
    for (int s = 0; s < g.size(); ++s) sources.push_back(g.data(s) + offset_bytes);
    sum_in_order(out.dtype(), out.raw(), sources, out.numel());
  }

  void do_broadcast(Tensor t, int root, Stream& stream, const Call& call) override {
    enqueue(collectives_, {Collective::broadcast, t.dtype(), root, t.numel()}, stream, call,
            [=, r = rank()](ThreadGroup& g, const Waiting& w) {
              g.meet(w, static_cast<std::byte*>(t.raw()));
              if (r != root) std::memcpy(t.raw(), g.data(root), size_t(t.bytes()));
              g.meet(w);
            });
  }

  void do_send(Tensor t, int to, Stream& stream, const Call& call) override {
    enqueue(sends_[size_t(to)], {Collective::send, t.dtype(), to, t.numel()}, stream, call,
            [=](ThreadGroup& g, const Waiting& w) {
              g.send(w, static_cast<const std::byte*>(t.raw()), size_t(t.bytes()));
            });
  }

  void do_recv(Tensor t, int from, Stream& stream, const Call& call) override {
    enqueue(recvs_[size_t(from)], {Collective::recv, t.dtype(), from, t.numel()}, stream, call,
            [=](ThreadGroup& g, const Waiting& w) {
              g.recv(w, static_cast<std::byte*>(t.raw()), size_t(t.bytes()));
            });
  }

  void do_barrier(Stream& stream, const Call& call) override {
    enqueue(collectives_, {.op = Collective::barrier}, stream, call,
            [](ThreadGroup& g, const Waiting& w) { g.meet(w, nullptr); });
  }

  std::shared_ptr<ThreadGroup> group_;
  Order collectives_;
  std::vector<Order> sends_, recvs_;  // by peer: a receive that waits does not hold up a send
};

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

void run_ranks(int size, const std::function<void(Communicator& world)>& body, const CommOptions& options) {
  CHECK(size >= 1, "run_ranks: {} ranks", size);
  auto group = std::make_shared<ThreadGroup>("world", all_ranks(size), options);
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](int rank) {
    ThreadCommunicator world(group, rank);
    std::string reason;
    try {
      return body(world);
    } catch (const std::exception& e) {
      std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      reason = e.what();
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      reason = "unknown failure";
    }
    group->poison(fmt::format("rank {} failed: {}", rank, reason));
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) threads.emplace_back(run, r);
  for (auto& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace cleave
