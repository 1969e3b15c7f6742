#include "device/team.h"

#include <immintrin.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "core/cores.h"

namespace cleave {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than the usual difference between the threads of a loop; shorter than a time slice of the kernel, so
// that another process on the core does not wait for a spinning thread.
constexpr auto kWatch = std::chrono::microseconds(100);

// A thread takes its share in this many parts, and idle threads take its unstarted parts. A thread that loses
// its core to another process delays only one part.
constexpr int kTakesOfAShare = 16;

std::atomic<int>& wanted() {
  static std::atomic<int> threads{threads_of_process().threads};
  return threads;
}

// The child of a fork has none of its parent's helpers.
std::atomic<int> forks{0};

thread_local bool within_share = false;

class Team {
 public:
  Team() {
    static const int once = pthread_atfork(nullptr, nullptr, [] { ++forks; });
    static_cast<void>(once);
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() {
    leaving_ = true;
    ++round_;
    round_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }

  bool of_this_process() const { return born_ == forks; }

  void run(int threads, Share share, const void* context, int64_t count, int64_t grain) {
    while (int(helpers_.size()) < threads - 1) {
      std::atomic<bool>& open = open_.emplace_back(false);
      const int number = int(helpers_.size()) + 1;
      helpers_.emplace_back([this, number, &open, seen = round_.load()] { help(number, open, seen); });
    }
    while (int(queues_.size()) < threads) queues_.emplace_back();
    loop_ = {share, context, grain > 0 ? grain : std::max<int64_t>(1, count / (threads * kTakesOfAShare)),
             threads};
    for (int t = 0; t < threads; ++t) {
      // With a grain, all pieces are in the first queue.
      queues_[size_t(t)].next = grain > 0 ? 0 : count * t / threads;
      queues_[size_t(t)].end = grain > 0 ? (t == 0 ? count : 0) : count * (t + 1) / threads;
    }
    working_ = threads - 1;
    for (int t = 1; t < threads; ++t) open_[size_t(t) - 1] = true;
    ++statistics_.loops;
    ++round_;
    round_.notify_all();
    within_share = true;
    take_part(0);
    for (int t = 1; t < threads; ++t)
      if (open_[size_t(t) - 1].exchange(false)) --working_;
    within_share = false;
    for (int left = working_; left != 0; left = working_) wait_for_change(working_, left);
  }

  TeamStatistics statistics() const {
    TeamStatistics s = statistics_;
    s.helpers = int(helpers_.size());
    s.sleeps = sleeps_;
    return s;
  }

 private:
  struct Loop {
    Share share;
    const void* context;
    int64_t grain;  // pieces taken at a time
    int threads;
  };
  // The untaken pieces of a thread's share.
  struct alignas(64) Queue {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  // Takes the thread's own share, then remaining pieces of others.
  void take_part(int thread) {
    const Loop loop = loop_;
    for (int t = 0; t < loop.threads; ++t) {
      Queue& queue = queues_[size_t((thread + t) % loop.threads)];
      while (queue.next.load(std::memory_order_relaxed) < queue.end) {
        const int64_t begin = queue.next.fetch_add(loop.grain, std::memory_order_relaxed);
        if (begin < queue.end)
          loop.share(loop.context, thread, begin, std::min(begin + loop.grain, queue.end));
      }
    }
  }

  void help(int number, std::atomic<bool>& open, uint32_t seen) {
    within_share = true;
    for (;;) {
      wait_for_change(round_, seen);
      seen = round_;
      if (leaving_) return;
      // A loop that was closed before this helper arrived may have ended long ago.
      if (!open.exchange(false)) continue;
      take_part(number);
      if (--working_ == 0) working_.notify_one();
    }
  }

  // Returns when the word differs or differed for a moment.
  template <class Word>
  void wait_for_change(const std::atomic<Word>& word, Word old) {
    const auto begin = Clock::now();
    do
      for (int i = 0; i < 64; ++i) {
        if (word != old) return;
        _mm_pause();
      }
    while (Clock::now() - begin < kWatch);
    ++sleeps_;
    word.wait(old);
  }

  alignas(64) std::atomic<uint32_t> round_{0};  // counts loops; helpers wait for a change
  alignas(64) std::atomic<int> working_{0};  // helpers that may join or are working; the caller waits for 0
  alignas(64) Loop loop_{};
  std::deque<Queue> queues_;  // by thread
  // True if the helper may still join this loop; false if the caller found no work left.
  std::deque<std::atomic<bool>> open_;
  std::atomic<bool> leaving_{false};
  std::atomic<int64_t> sleeps_{0};
  const int born_ = forks;
  TeamStatistics statistics_;
  std::vector<std::thread> helpers_;
};

// Team of the calling thread, created at its first shared loop. After a fork it is abandoned, because its
// helpers are threads of the parent process.
struct Own {
  std::unique_ptr<Team> team;

  ~Own() { leave_to_parent(); }
  Team& get() {
    leave_to_parent();
    if (!team) team = std::make_unique<Team>();
    return *team;
  }
  void leave_to_parent() {
    if (team && !team->of_this_process()) static_cast<void>(team.release());
  }
};
thread_local Own own;

void run(int64_t count, int64_t grain, Share share, const void* context) {
  const int threads = int(std::min<int64_t>(team_threads(), count));
  if (threads > 1 && !within_share)
    own.get().run(threads, share, context, count, grain);
  else if (count > 0)
    share(context, 0, 0, count);
}

}  // namespace

int team_threads() { return wanted(); }
void set_team_threads(int threads) { wanted() = std::max(1, threads); }

void run_shares(int64_t count, Share share, const void* context) { run(count, 0, share, context); }
void run_in_turn(int64_t count, int64_t grain, Share share, const void* context) {
  run(count, std::max<int64_t>(grain, 1), share, context);
}

TeamStatistics team_statistics() { return own.team ? own.team->statistics() : TeamStatistics{}; }

}  // namespace cleave
