#include "data/batch_loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "data/window_prefetch.h"
#include "data/windows.h"
#include "tests/scratch.h"

namespace cleave::data {
namespace {

using Tokens = std::vector<int32_t>;

// A file with token i = i, so that a window reveals its position.
class Counting {
 public:
  explicit Counting(int32_t tokens) {
    Tokens all(static_cast<size_t>(tokens));
    std::iota(all.begin(), all.end(), 0);
    write_llmc(scratch_.path("counting.bin"), all);
    file_.emplace(scratch_.path("counting.bin"));
  }
  const TokenFile& file() const { return *file_; }

 private:
  Scratch scratch_;
  std::optional<TokenFile> file_;
};

Tokens values(const Tensor& t) {
  const auto s = t.span<int32_t>();
  return {s.begin(), s.end()};
}

// Expected contents of micro-batch (step, micro), from the definition.
Tokens expected_input(const TokenBatchesOptions& o, const Sampler& sampler, int64_t step, int64_t micro) {
  Tokens out;
  for (int64_t row = 0; row < o.micro_batch; ++row) {
    const int64_t sample = sampler.sample(step, (micro * o.ranks + o.rank) * o.micro_batch + row);
    for (int64_t t = 0; t < o.seq_len; ++t) out.push_back(int32_t(sample * o.seq_len + t));
  }
  return out;
}

Tokens plus_one(Tokens tokens) {
  for (int32_t& t : tokens) ++t;
  return tokens;
}

TEST(Windows, EveryTokenExceptTheFirstIsATargetOnce) {
  const Counting data(3 * 4 + 1);
  const Windows windows = windows_of(data.file(), 4);
  ASSERT_EQ(windows.size(), 3);
  std::multiset<int32_t> targets;
  for (int64_t w = 0; w < 3; ++w) {
    int32_t input[4], target[4];
    windows.read(w, {input, target});
    EXPECT_EQ(input[0], w * 4);
    for (int t = 0; t < 4; ++t) {
      EXPECT_EQ(target[t], input[t] + 1);
      targets.insert(target[t]);
    }
  }
  EXPECT_EQ(targets.size(), 12u);
  EXPECT_EQ(std::set<int32_t>(targets.begin(), targets.end()).size(), 12u);
}

TEST(Windows, CountOnlyWholeOnes) {
  const Counting twelve(12), thirteen(13), two(2);
  EXPECT_EQ(windows_of(twelve.file(), 4).size(), 2);
  EXPECT_EQ(windows_of(thirteen.file(), 4).size(), 3);
  EXPECT_EQ(windows_of(two.file(), 1).size(), 1);
}

TEST(Windows, RejectATextShorterThanOne) {
  const Counting data(4);
  expect_error(Exit::data, {data.file().path(), "has 4 tokens", "needs 5", "--seq_len 3"},
               [&] { windows_of(data.file(), 4); });
  expect_error(Exit::usage, {"--seq_len: must be at least 1 (got 0"}, [&] { windows_of(data.file(), 0); });
}

TEST(TokenBatches, FollowTheSamplerOnEveryRank) {
  const Counting data(24 * 3 + 1);
  for (int rank = 0; rank < 2; ++rank) {
    const TokenBatchesOptions o{
        .seq_len = 3, .micro_batch = 2, .accumulation = 3, .rank = rank, .ranks = 2, .seed = 7};
    TokenBatches batches(data.file(), o);
    EXPECT_EQ(batches.sampler().steps_per_epoch(), 2);
    for (int64_t step = 0; step < 5; ++step)
      for (int64_t micro = 0; micro < 3; ++micro) {
        const Batch b = batches.next(step, micro);
        const Tokens expected = expected_input(o, batches.sampler(), step, micro);
        EXPECT_EQ(values(b.input), expected) << step << ", " << micro;
        EXPECT_EQ(values(b.targets), plus_one(expected));
        EXPECT_EQ(b.valid_targets, 6);
        EXPECT_EQ(b.position.first_sample, (micro * 2 + rank) * 2);
        EXPECT_EQ(b.input.memory(), MemoryKind::host);
      }
  }
}

TEST(TokenBatches, TheGlobalBatchDoesNotDependOnTheNumberOfRanks) {
  const Counting data(24 * 3 + 1);
  auto global_batch = [&](int ranks, int64_t micro_batch, int64_t step) {
    std::set<int32_t> first_tokens;
    const int64_t accumulation = 12 / ranks / micro_batch;
    for (int rank = 0; rank < ranks; ++rank) {
      TokenBatches batches(data.file(), {.seq_len = 3,
                                         .micro_batch = micro_batch,
                                         .accumulation = accumulation,
                                         .rank = rank,
                                         .ranks = ranks,
                                         .seed = 3});
      for (int64_t micro = 0; micro < accumulation; ++micro) {
        const Tokens input = values(batches.next(step, micro).input);
        for (size_t row = 0; row < input.size(); row += 3) first_tokens.insert(input[row]);
      }
    }
    return first_tokens;
  };
  for (int64_t step : {0, 1, 5}) {
    const auto one = global_batch(1, 12, step);
    EXPECT_EQ(one.size(), 12u);
    EXPECT_EQ(global_batch(2, 1, step), one);
    EXPECT_EQ(global_batch(3, 2, step), one);
    EXPECT_EQ(global_batch(12, 1, step), one);
  }
}

TEST(TokenBatches, AnyOrderOfAccessGivesTheSame) {
  const Counting data(40 * 2 + 1);
  const TokenBatchesOptions o{.seq_len = 2, .micro_batch = 2, .accumulation = 2, .seed = 1};
  TokenBatches batches(data.file(), o);
  const std::pair<int64_t, int64_t> visits[] = {{9, 1}, {0, 0}, {0, 1}, {0, 1}, {0, 0}, {3, 1},
                                                {4, 0}, {1, 0}, {4, 0}, {4, 1}, {5, 0}, {5, 0}};
  for (auto [step, micro] : visits)
    EXPECT_EQ(values(batches.next(step, micro).input), expected_input(o, batches.sampler(), step, micro))
        << step << ", " << micro;
}

TEST(TokenBatches, AResultStaysValidUntilTheNextCall) {
  const Counting data(64 * 8 + 1);
  const TokenBatchesOptions o{.seq_len = 8, .micro_batch = 4};
  TokenBatches batches(data.file(), o);
  for (int64_t step = 0; step < 40; ++step) {
    const Batch b = batches.next(step, 0);
    const Tokens expected = expected_input(o, batches.sampler(), step, 0);
    for (int again = 0; again < 20; ++again)
      ASSERT_EQ(values(b.input), expected);  // while the worker fills the next
  }
}

TEST(TokenBatches, AnErrorOfTheWorkerReachesTheCallerAndOtherStepsWork) {
  const Scratch scratch;
  const TokenFile file(scratch.write("a.txt",
                                     "aaaa\xff"
                                     "aaaa"),
                       {.vocab = 128});
  TokenBatches batches(file, {.seq_len = 2, .shuffle = false});
  EXPECT_EQ(values(batches.next(0, 0).input), (Tokens{'a', 'a'}));
  expect_error(Exit::data, {"token 4 is 255"}, [&] { batches.next(1, 0); });  // the target of window 1
  expect_error(Exit::data, {"token 4 is 255"}, [&] { batches.next(1, 0); });
  expect_error(Exit::data, {"token 4 is 255"}, [&] { batches.next(2, 0); });
  EXPECT_EQ(values(batches.next(3, 0).input), (Tokens{'a', 'a'}));
}

TEST(TokenBatches, RejectMoreRanksThanSamplesWithTheNumbers) {
  const Counting data(3 * 4 + 1);
  expect_error(Exit::data,
               {data.file().path(), "holds 3 samples of 4 tokens", "takes 8",
                "micro batch 2 x accumulation 1 x 4 ranks", "train_batch_size"},
               [&] { TokenBatches(data.file(), {.seq_len = 4, .micro_batch = 2, .ranks = 4}); });
  expect_error(Exit::data, {"needs 21"}, [&] { TokenBatches(data.file(), {.seq_len = 20}); });
}

TEST(WindowPrefetch, ReadsEachMicroBatchOnceAndPrefetchesTheNext) {
  const Counting data(20 * 2 + 1);
  std::vector<int64_t> asked;  // the worker writes it; read after the worker ends
  {
    const Windows windows = windows_of(data.file(), 2);
    WindowPrefetch prefetch({.seq_len = 2}, 1, [&](int64_t ordinal, int64_t, const SampleRow& to) {
      asked.push_back(ordinal);
      windows.read(ordinal, to);
    });
    for (int64_t ordinal = 0; ordinal < 5; ++ordinal)
      EXPECT_EQ(prefetch.get(ordinal, ordinal + 1).input[0], 2 * ordinal);
  }
  EXPECT_EQ(asked, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
}

// The destructor waits for the current micro-batch of the worker, and the worker's data live until then.
TEST(WindowPrefetch, CanBeLeftWhileTheWorkerIsBusy) {
  const Counting data(20 * 2 + 1);
  struct {
    std::promise<void> begun;
    std::atomic<bool> done = false, lived = false;
  } next;  // the next micro-batch
  {
    auto alive = std::make_shared<int>();
    const Windows windows = windows_of(data.file(), 2);
    auto fill = [&next, &windows, alive](int64_t ordinal, int64_t, const SampleRow& to) {
      windows.read(ordinal, to);
      if (ordinal == 0) return;
      // Copies the captures, which may be destroyed while it sleeps.
      auto& told = next;
      const std::weak_ptr<int> rows = alive;
      told.begun.set_value();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      told.lived = !rows.expired();
      told.done = true;
    };
    WindowPrefetch prefetch({.seq_len = 2}, 1, std::move(fill));
    alive.reset();
    EXPECT_EQ(prefetch.get(0, 1).input[0], 0);
    next.begun.get_future().wait();
  }
  EXPECT_TRUE(next.done);
  EXPECT_TRUE(next.lived);
}

TEST(TokenBatches, CanBeDestroyedAtAnyTime) {
  const Counting data(500 * 64 + 1);
  const TokenBatchesOptions options{.seq_len = 64, .micro_batch = 100};
  for (int i = 0; i < 20; ++i) {
    TokenBatches batches(data.file(), options);
    EXPECT_EQ(values(batches.next(i, 0).input), expected_input(options, batches.sampler(), i, 0));
  }
}

TEST(EvalBatches, CoverEveryTargetOnceOverAllRanksAndPadTheRest) {
  for (int ranks : {1, 2, 3, 5})
    for (int64_t micro_batch : {1, 2, 4}) {
      const Counting data(11 * 3 + 1 + 2);
      std::multiset<int32_t> windows;
      int64_t valid = 0;
      std::set<int64_t> micros;
      for (int rank = 0; rank < ranks; ++rank) {
        EvalBatches batches(data.file(),
                            {.seq_len = 3, .micro_batch = micro_batch, .rank = rank, .ranks = ranks});
        micros.insert(batches.micros());
        for (int64_t micro = 0; micro < batches.micros(); ++micro) {
          const Batch b = batches.next(micro);
          const Tokens input = values(b.input), targets = values(b.targets);
          valid += b.valid_targets;
          int64_t counted = 0;
          for (size_t i = 0; i < input.size(); ++i) {
            counted += targets[i] != kIgnoredTarget;
            EXPECT_EQ(targets[i], targets[i] == kIgnoredTarget ? kIgnoredTarget : input[i] + 1);
            if (i % 3 == 0 && targets[i] != kIgnoredTarget) windows.insert(input[i]);
          }
          EXPECT_EQ(b.valid_targets, counted);
        }
      }
      EXPECT_EQ(micros.size(), 1u) << "ranks disagree on the number of micro-batches";
      EXPECT_EQ(valid, 35) << "tokens 1 to 35";
      EXPECT_EQ(windows, (std::multiset<int32_t>{0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33}));
    }
}

TEST(EvalBatches, CoverSeveralFilesInOrder) {
  const Counting a(3 * 2 + 1), b(4 * 2 + 2);
  std::vector<TokenFile> files;
  for (const Counting* data : {&a, &b}) files.emplace_back(data->file().path());
  EvalBatches batches(files, {.seq_len = 2, .micro_batch = 2});
  ASSERT_EQ(batches.micros(), 4);
  EXPECT_EQ(values(batches.next(0).input), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(values(batches.next(1).input), (Tokens{4, 5, 0, 1}));
  EXPECT_EQ(values(batches.next(2).targets), (Tokens{3, 4, 5, 6}));
  EXPECT_EQ(values(batches.next(3).targets), (Tokens{7, 8, 9, kIgnoredTarget}));
}

TEST(EvalBatches, OfATextShorterThanAWindowContainItsTargets) {
  const Counting data(3);
  EvalBatches batches(data.file(), {.seq_len = 8, .micro_batch = 1});
  ASSERT_EQ(batches.micros(), 1);
  EXPECT_EQ(batches.next(0).valid_targets, 2);
  const Counting one(1);
  expect_error(Exit::data, {"has 1 tokens, but one sample needs 2"},
               [&] { EvalBatches(one.file(), {.seq_len = 8, .micro_batch = 1}); });
}

TEST(EvalBatches, CanBeReadAgain) {
  const Counting data(5 * 2 + 1);
  EvalBatches batches(data.file(), {.seq_len = 2, .micro_batch = 2});
  ASSERT_EQ(batches.micros(), 3);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(values(batches.next(0).input), (Tokens{0, 1, 2, 3}));
    EXPECT_EQ(values(batches.next(1).input), (Tokens{4, 5, 6, 7}));
    EXPECT_EQ(values(batches.next(2).targets), (Tokens{9, 10, kIgnoredTarget, kIgnoredTarget}));
  }
}

}  // namespace
}  // namespace cleave::data
