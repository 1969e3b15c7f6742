// Transport of ranks as threads of one process: a rank publishes a pointer to its data, all ranks read their
// parts, and a final meeting ends the use of the pointers. Only sends copy data.
#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <thread>

#include "comm/group.h"
#include "comm/group_communicator.h"
#include "comm/post_board.h"
#include "comm/reduce.h"

namespace cleave::comm {
namespace {

// One object that all members share.
class ThreadGroup final : public Group {
 public:
  ThreadGroup(std::string name, std::vector<int> ranks, CommOptions options)
      : Group(std::move(name), std::move(ranks), options),
        posts_(size_t(size())),
        data_(size_t(size())),
        arrivals_(size_t(size())),
        reading_(size_t(size())),
        exchanged_(size_t(size())),
        waits_(size_t(size())) {}

  void all_gather(const Waiting& w, Tensor full, Tensor shard, Range piece) override {
    const Tensor mine = shard.slice(piece);
    meet(w, mine.raw());
    for (int r = 0; r < size(); ++r) {
      const Tensor to = full.slice(piece.shifted(r * shard.numel()));
      if (r != w.rank || to.raw() != mine.raw()) copy(to, data_[size_t(r)]);
    }
    meet(w);
  }

  void reduce_scatter(const Waiting& w, Tensor shard, Tensor full, Range piece) override {
    meet(w, full.raw());
    // Only this rank reads its slices, so it may overwrite its own in place.
    reduce(w, shard.slice(piece), w.rank * shard.numel() + piece.begin);
    meet(w);
  }

  void all_reduce(const Waiting& w, Tensor t) override {
    meet(w, t.raw());
    const Range mine = part(t.numel(), size(), w.rank);
    reduce(w, t.slice(mine), mine.begin);
    meet(w, Then::read);
    for (int r = 0; r < size(); ++r) {
      const Range theirs = part(t.numel(), size(), r);
      if (r != w.rank) copy(t.slice(theirs), data_[size_t(r)] + theirs.begin * size_of(t.dtype()));
    }
    meet(w);
  }

  void broadcast(const Waiting& w, Tensor t, int root) override {
    meet(w, t.raw());
    if (w.rank != root) copy(t, data_[size_t(root)]);
    meet(w);
  }

  void all_to_all(const Waiting& w, Tensor out, Tensor in, Range piece) override {
    meet(w, in.raw());
    const int64_t block = in.numel() / size();
    for (int r = 0; r < size(); ++r)
      copy(out.slice(piece.shifted(r * block)),
           data_[size_t(r)] + (w.rank * block + piece.begin) * size_of(in.dtype()));
    meet(w);
  }

  void barrier(const Waiting& w) override { meet(w, nullptr); }

  void send(const Waiting& w, Tensor t, int to) override {
    const auto* data = static_cast<const std::byte*>(t.raw());
    Message message{w.post, {data, data + t.bytes()}};
    std::lock_guard lock(mutex_);
    throw_if_poisoned(w);
    mail_[{w.rank, to}].push_back(std::move(message));
    changed_.notify_all();
  }

  void recv(const Waiting& w, Tensor t, int from) override {
    std::unique_lock lock(mutex_);
    auto& box = mail_[{from, w.rank}];
    if (!changed_.wait_until(lock, deadline(), [&] { return poisoned_ || !box.empty(); })) {
      std::vector<bool> present(size_t(size()), true);
      present[size_t(from)] = false;
      give_up_locked(w, deadline_report(w, present, options().timeout), Exit::rank_lost);
    }
    throw_if_poisoned(w);
    const Message message = std::move(box.front());
    box.pop_front();
    if (message.post.numel != w.post.numel || message.post.dtype != w.post.dtype)
      give_up_locked(w, mismatch_report(w, from, message.post), Exit::internal);
    lock.unlock();
    copy(t, message.data.data());
  }

  std::vector<int64_t> exchange(const Waiting& w, int64_t mine) override {
    exchanged_[size_t(w.rank)] = mine;
    meet(w, &exchanged_);
    std::vector<int64_t> all = exchanged_;
    meet(w);
    return all;
  }

  std::shared_ptr<Group> form(const Waiting& w, const std::vector<int>& members,
                              const std::string& name) override {
    std::shared_ptr<ThreadGroup> group;
    {
      std::lock_guard lock(mutex_);
      auto& forming = forming_[members.front()];
      if (!forming) {
        std::vector<int> world_ranks;
        for (int m : members) world_ranks.push_back(ranks()[size_t(m)]);
        forming = std::make_shared<ThreadGroup>(name, world_ranks, options());
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

  std::string difference(const Waiting& w) override {
    std::lock_guard lock(mutex_);
    waits_[size_t(w.rank)].tell(w.number, w.post);
    for (int r = 0; r < size(); ++r)
      if (const auto post = waits_[size_t(r)].call(w.number); post && !(*post == w.post))
        return mismatch_report(w, r, *post);
    return {};
  }

  std::string lost() const override {
    std::lock_guard lock(mutex_);
    return reason_;
  }

  void poison(const std::string& reason) override {
    std::lock_guard lock(mutex_);
    poison_locked(reason);
  }

  [[noreturn]] void give_up(const Waiting& w, const std::string& report, Exit exit) override {
    std::lock_guard lock(mutex_);
    give_up_locked(w, report, exit);
  }

 private:
  struct Message {
    Post post;
    std::vector<std::byte> data;
  };

  // After a meeting, ranks either read each other's data until the next meeting, or part.
  enum class Then { read, part };

  static void copy(Tensor to, const std::byte* from) {
    if (to.bytes() > 0) std::memcpy(to.raw(), from, size_t(to.bytes()));
  }

  void reduce(const Waiting& w, Tensor out, int64_t first) {
    std::vector<const std::byte*> sources;
    for (const std::byte* data : data_) sources.push_back(data + first * size_of(out.dtype()));
    reduce_in_order(w.post.by, out.dtype(), out.raw(), sources, out.numel());
  }

  // Publishes this rank's call and pointer; returns when all ranks have published theirs.
  void meet(const Waiting& w, void* data) {
    std::unique_lock lock(mutex_);
    posts_[size_t(w.rank)] = w.post;
    data_[size_t(w.rank)] = static_cast<std::byte*>(data);
    // The later one of any two ranks compares, so every pair is compared before either can continue.
    const uint64_t mine = arrivals_[size_t(w.rank)] + 1;
    for (size_t r = 0; r < posts_.size(); ++r)
      if (arrivals_[r] == mine && !(posts_[r] == w.post))
        give_up_locked(w, mismatch_report(w, int(r), posts_[r]), Exit::internal);
    arrive(lock, w, data ? Then::read : Then::part);
  }

  // Returns when all ranks have arrived.
  void meet(const Waiting& w, Then then = Then::part) {
    std::unique_lock lock(mutex_);
    arrive(lock, w, then);
  }

  void arrive(std::unique_lock<std::mutex>& lock, const Waiting& w, Then then) {
    reading_[size_t(w.rank)] = false;
    const uint64_t mine = arrivals_[size_t(w.rank)] + 1;
    const auto all = [&] { return *std::min_element(arrivals_.begin(), arrivals_.end()) >= mine; };
    bool in_time = true;
    if (!poisoned_) {
      arrivals_[size_t(w.rank)] = mine;
      if (all()) {
        reading_.assign(reading_.size(), then == Then::read);
        lock.unlock();  // otherwise threads would wake up and wait for the lock
        return changed_.notify_all();
      }
      in_time = changed_.wait_until(lock, deadline(), [&] { return poisoned_ || all(); });
      if (in_time && all()) return;
    }
    std::vector<bool> present;
    for (uint64_t a : arrivals_) present.push_back(a >= mine);
    if (!in_time) poison_locked(deadline_report(w, present, options().timeout));
    // The caller may free its published data afterwards: waits for ranks that still read it.
    changed_.notify_all();
    changed_.wait(lock,
                  [&] { return std::none_of(reading_.begin(), reading_.end(), [](char r) { return r; }); });
    if (!in_time) fail(Exit::rank_lost, "{}", reason_);
    throw_if_poisoned(w);
  }

  [[noreturn]] void give_up_locked(const Waiting& w, const std::string& report, Exit exit) {
    throw_if_poisoned(w);
    poison_locked(report);
    fail(exit, "{}", report);
  }

  void throw_if_poisoned(const Waiting& w) const {
    if (poisoned_) fail(Exit::rank_lost, "{} was aborted: {}", describe(w), reason_);
  }

  void poison_locked(const std::string& reason) {
    if (poisoned_) return;
    poisoned_ = true;
    reason_ = reason;
    for (auto& child : children_)
      if (auto group = child.lock()) group->poison(reason);
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Post> posts_;
  std::vector<std::byte*> data_;    // valid while ranks read
  std::vector<uint64_t> arrivals_;  // number of meetings that each rank has reached
  std::vector<char> reading_;       // ranks that may be reading published data
  std::vector<int64_t> exchanged_;
  std::vector<PostBoard> waits_;
  std::map<std::pair<int, int>, std::deque<Message>> mail_;  // by sender and receiver
  std::map<int, std::shared_ptr<ThreadGroup>> forming_;      // by first member, during a split
  std::vector<std::weak_ptr<ThreadGroup>> children_;
  bool poisoned_ = false;
  std::string reason_;
};

}  // namespace

void run_ranks(int size, const std::function<void(Communicator& world)>& body, const CommOptions& options) {
  CHECK(size >= 1, "run_ranks: {} ranks", size);
  auto group = std::make_shared<ThreadGroup>("world", all_ranks(size), options);
  std::mutex mutex;
  std::exception_ptr first;
  bool first_is_consequence = false;
  // A rank that another rank's failure released may arrive here before the failed rank.
  const auto record = [&](bool is_consequence) {
    std::lock_guard lock(mutex);
    if (first && (is_consequence || !first_is_consequence)) return;
    first = std::current_exception();
    first_is_consequence = is_consequence;
  };
  const auto run = [&](int rank) {
    const auto world = communicator_over(group, rank);
    std::string reason = "unknown failure";
    try {
      return body(*world);
    } catch (const Error& e) {
      record(e.exit() == Exit::rank_lost);
      reason = e.what();
    } catch (const std::exception& e) {
      record(false);
      reason = e.what();
    } catch (...) {
      record(false);
    }
    group->poison(fmt::format("rank {} failed: {}", rank, reason));
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) threads.emplace_back(run, r);
  for (auto& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace cleave::comm
