#include "device/team.h"

#include <immintrin.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "core/cores.h"

namespace cleave {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than a loop's threads usually end apart, shorter than a time slice of the kernel, which a neighbour
// that shares the core would have to wait for.
constexpr auto kWatch = std::chrono::microseconds(20);

std::atomic<int>& wanted() {
  static std::atomic<int> threads{threads_of_process().threads};
  return threads;
}

// A child of fork has none of its parent's helpers.
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
      const int number = int(helpers_.size()) + 1;
      helpers_.emplace_back([this, number, seen = round_.load()] { help(number, seen); });
    }
    loop_ = {share, context, count, grain, threads};
    next_ = 0;
    working_ = int(helpers_.size());
    ++statistics_.loops;
    ++round_;
    round_.notify_all();
    within_share = true;
    take_part(0);
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
    int64_t count, grain;  // grain 0: even shares
    int threads;
  };

  void take_part(int thread) {
    const Loop loop = loop_;
    if (thread >= loop.threads) return;
    if (loop.grain == 0) {
      const int64_t begin = loop.count * thread / loop.threads,
                    end = loop.count * (thread + 1) / loop.threads;
      if (begin < end) loop.share(loop.context, thread, begin, end);
      return;
    }
    for (int64_t begin; (begin = next_.fetch_add(loop.grain, std::memory_order_relaxed)) < loop.count;)
      loop.share(loop.context, thread, begin, std::min(begin + loop.grain, loop.count));
  }

  void help(int number, uint32_t seen) {
    within_share = true;
    for (;;) {
      wait_for_change(round_, seen);
      ++seen;
      if (leaving_) return;
      take_part(number);
      if (--working_ == 0) working_.notify_one();
    }
  }

  // Returns when the word is, or for a moment was, another one.
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

  alignas(64) std::atomic<uint32_t> round_{0};  // counts loops; helpers wait for the next
  alignas(64) std::atomic<int> working_{0};     // helpers that have not finished this one; the caller waits
  alignas(64) std::atomic<int64_t> next_{0};    // the first piece that nobody has taken
  alignas(64) Loop loop_{};
  std::atomic<bool> leaving_{false};
  std::atomic<int64_t> sleeps_{0};
  const int born_ = forks;
  TeamStatistics statistics_;
  std::vector<std::thread> helpers_;
};

// The calling thread's, made when it first shares a loop. One that was copied by fork is left as it is: its
// helpers are threads of another process, which nobody here can end.
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
