// The steps of collectives through segments, taken in host memory: one at a time, by a scheduler that lets
// ranks run ahead of each other in every way that their waits allow.
#include "comm/ipc/plan.h"

#include <algorithm>
#include <random>

#include "comm/reduce.h"
#include "tests/comm/collective_values.h"

namespace cleave {
namespace {

using test::Bytes, test::input, test::expected_sum, test::expected_gather;
using Kind = IpcStep::Kind;

// One call of one rank.
struct Made {
  IpcSteps steps;
  DType dtype;
  Bytes in, want;
  Bytes out = {};
  bool in_place = false;  // out is in
  int64_t out_at = 0;     // where out begins in `in`, in place
};

struct Rank {
  std::vector<Made> calls;
  Bytes segment;
  uint32_t words[kIpcWords] = {};
  size_t call = 0, step = 0;
  bool finished() const { return call == calls.size(); }
};

class Ranks {
 public:
  explicit Ranks(std::vector<std::vector<Made>> calls, int64_t segment, uint32_t start)
      : ranks_(calls.size()) {
    for (size_t r = 0; r < calls.size(); ++r) {
      ranks_[r].calls = std::move(calls[r]);
      ranks_[r].segment.assign(size_t(segment), std::byte{0xEE});
      std::fill_n(ranks_[r].words, kIpcWords, start);
    }
  }

  // One step of rank r, unless it is done or waits.
  bool advance(size_t r) {
    Rank& me = ranks_[r];
    while (!me.finished() && me.step == me.calls[me.call].steps.size()) ++me.call, me.step = 0;
    if (me.finished() || !take(me, me.calls[me.call], me.calls[me.call].steps[me.step])) return false;
    ++me.step;
    return true;
  }
  bool finished() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.finished(); });
  }
  size_t size() const { return ranks_.size(); }
  bool right() const {
    for (const Rank& r : ranks_)
      for (const Made& c : r.calls) {
        const Bytes& memory = c.in_place ? c.in : c.out;
        if (!std::equal(c.want.begin(), c.want.end(), memory.begin() + (c.in_place ? c.out_at : 0)))
          return false;
      }
    return true;
  }

 private:
  bool take(Rank& me, Made& c, const IpcStep& s) {
    std::byte *in = c.in.data(), *out = c.in_place ? in + c.out_at : c.out.data();
    const size_t bytes = size_t(s.bytes);
    switch (s.kind) {
      case Kind::wait:
        return has_come_to(ranks_[size_t(s.rank)].words[size_t(s.word)], s.value);
      case Kind::put:
        CHECK(s.to + s.bytes <= int64_t(me.segment.size()), "beyond the segment");
        std::memmove(me.segment.data() + s.to, in + s.from, bytes);
        return true;
      case Kind::get:
        std::memmove(out + s.to, ranks_[size_t(s.rank)].segment.data() + s.from, bytes);
        return true;
      case Kind::move:
        std::memmove(out + s.to, in + s.from, bytes);
        return true;
      case Kind::sum: {
        std::vector<const std::byte*> sources;
        for (const Rank& r : ranks_) sources.push_back(&r == &me ? in + s.own : r.segment.data() + s.from);
        sum_in_order(c.dtype, out + s.to, sources, s.bytes / size_of(c.dtype));
        return true;
      }
      case Kind::signal:
        me.words[size_t(s.word)] = s.value;
        return true;
    }
    return false;
  }

  std::vector<Rank> ranks_;
};

// What calls of all kinds should do, on every rank.
class Calls {
 public:
  Calls(int size, int64_t slot_bytes, int slots, uint32_t start = 0)
      : size_(size), start_(start), made_(size_t(size)) {
    for (int r = 0; r < size; ++r) planners_.emplace_back(r, size, slot_bytes, slots, start);
  }

  void all_gather(DType t, int64_t shard, Range piece, bool in_place) {
    each([&](int r, IpcPlanner& p) {
      Made m{p.all_gather(size_of(t), shard, piece),
             t,
             input(t, r, shard),
             {},
             Bytes(size_t(shard * size_ * size_of(t)), std::byte{7})};
      m.want = m.out;
      const Bytes all = expected_gather(t, size_, shard);
      for (int64_t k = 0; k < size_; ++k)
        for (int64_t i = (k * shard + piece.begin) * size_of(t); i < (k * shard + piece.end) * size_of(t);
             ++i)
          m.want[size_t(i)] = all[size_t(i)];
      if (in_place) {
        Bytes full = m.out;
        std::copy(m.in.begin(), m.in.end(), full.begin() + r * shard * size_of(t));
        std::copy(m.in.begin(), m.in.end(), m.want.begin() + r * shard * size_of(t));
        // The planner's `in` is the shard: it lies inside of `out`, which this case writes as offsets from
        // the shard.
        for (IpcStep& s : m.steps) {
          if (s.kind == Kind::put || s.kind == Kind::move) s.from += r * shard * size_of(t);
        }
        m.in = full, m.in_place = true;
      }
      return m;
    });
  }
  void reduce_scatter(DType t, int64_t shard, Range piece, bool in_place) {
    each([&](int r, IpcPlanner& p) {
      Made m{p.reduce_scatter(size_of(t), shard, piece),
             t,
             input(t, r, shard * size_),
             {},
             Bytes(size_t(shard * size_of(t)), std::byte{7})};
      m.in_place = in_place, m.out_at = in_place ? r * shard * size_of(t) : 0;
      m.want =
          in_place ? Bytes(m.in.begin() + m.out_at, m.in.begin() + m.out_at + shard * size_of(t)) : m.out;
      const Bytes sum = expected_sum(t, size_, shard, r * shard);
      std::copy(sum.begin() + piece.begin * size_of(t), sum.begin() + piece.end * size_of(t),
                m.want.begin() + piece.begin * size_of(t));
      return m;
    });
  }
  void all_reduce(DType t, int64_t numel) {
    each([&](int r, IpcPlanner& p) {
      return Made{.steps = p.all_reduce(size_of(t), numel),
                  .dtype = t,
                  .in = input(t, r, numel),
                  .want = expected_sum(t, size_, numel),
                  .in_place = true};
    });
  }
  void broadcast(DType t, int64_t numel, int root) {
    each([&](int r, IpcPlanner& p) {
      return Made{.steps = p.broadcast(size_of(t), numel, root),
                  .dtype = t,
                  .in = input(t, r, numel),
                  .want = input(t, root, numel),
                  .in_place = true};
    });
  }
  void all_to_all(DType t, int64_t block) {
    each([&](int r, IpcPlanner& p) {
      Made m{p.all_to_all(size_of(t), block, {0, block}),
             t,
             input(t, r, block * size_),
             {},
             Bytes(size_t(block * size_ * size_of(t)))};
      for (int k = 0; k < size_; ++k) {
        const Bytes theirs = input(t, k, block, r * block);
        m.want.insert(m.want.end(), theirs.begin(), theirs.end());
      }
      return m;
    });
  }
  void message(DType t, int64_t numel) {
    each([&](int r, IpcPlanner& p) {
      const int64_t bytes = numel * size_of(t);
      const Bytes sent = input(t, 9, numel);
      if (r == 0) return Made{.steps = p.send(bytes), .dtype = t, .in = sent, .want = {}};
      return Made{.steps = p.recv(bytes), .dtype = t, .in = {}, .want = sent, .out = Bytes(sent.size())};
    });
  }

  Ranks ranks() const { return Ranks(made_, planners_[0].segment_bytes(), start_); }
  std::vector<std::vector<Made>>& made() { return made_; }

 private:
  template <class Make>
  void each(Make make) {
    for (int r = 0; r < size_; ++r) made_[size_t(r)].push_back(make(r, planners_[size_t(r)]));
  }

  int size_;
  uint32_t start_;
  std::vector<IpcPlanner> planners_;
  std::vector<std::vector<Made>> made_;
};

// Each rank in turn, as far as it can; from the last to the first when `backwards`.
bool run_greedily(Ranks ranks, bool backwards) {
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t i = 0; i < ranks.size(); ++i)
      while (ranks.advance(backwards ? ranks.size() - 1 - i : i)) moved = true;
  }
  return ranks.finished() && ranks.right();
}

// Ranks in any order, each for a burst of steps.
bool run_at_random(Ranks ranks, unsigned seed) {
  std::mt19937 random(seed);
  for (int stuck = 0; stuck < 200;) {
    const size_t r = random() % ranks.size();
    const unsigned burst = 1 + unsigned(random() % (seed % 2 ? 3 : 40));
    unsigned moved = 0;
    while (moved < burst && ranks.advance(r)) ++moved;
    stuck = moved ? 0 : stuck + 1;
    if (ranks.finished()) break;
  }
  return ranks.finished() && ranks.right();
}

bool right_in_every_order(const Calls& calls, unsigned seeds = 20) {
  bool right = run_greedily(calls.ranks(), false) && run_greedily(calls.ranks(), true);
  for (unsigned seed = 0; seed < seeds && right; ++seed) right = run_at_random(calls.ranks(), seed);
  return right;
}

void add_everything(Calls& calls, int size, DType t, int64_t numel) {
  const bool sums = can_sum(t);
  for (bool in_place : {false, true}) {
    calls.all_gather(t, numel, {0, numel}, in_place);
    if (sums) calls.reduce_scatter(t, numel, {0, numel}, in_place);
  }
  calls.all_gather(t, numel, {numel / 3, numel / 2}, false);
  if (sums) calls.reduce_scatter(t, numel, {numel / 3, numel / 2}, false);
  if (sums) calls.all_reduce(t, numel);
  for (int root = 0; root < size; ++root) calls.broadcast(t, numel, root);
  calls.all_to_all(t, numel);
}

TEST(IpcPlan, GivesTheBitsOfTheOtherTransportsInEveryOrderOfItsSteps) {
  for (int size : {2, 3, 5})
    for (int slots : {1, 2})
      for (DType t : {DType::fp32, DType::fp16, DType::bf16, DType::fp64, DType::int64, DType::int32,
                      DType::uint16, DType::uint8}) {
        Calls calls(size, 64 * size + 32, slots);
        for (int64_t numel : {0, 1, 7, 101}) add_everything(calls, size, t, numel);
        EXPECT_TRUE(right_in_every_order(calls)) << size << " ranks, " << slots << " slots, " << name_of(t);
      }
}

TEST(IpcPlan, AddsPartsOfLargeChunksAndPassesThemOn) {
  for (int size : {2, 3, 4}) {
    Calls calls(size, 96 << 10, 2);
    for (DType t : {DType::fp32, DType::bf16}) calls.all_reduce(t, 60'001), calls.all_reduce(t, 5);
    EXPECT_TRUE(right_in_every_order(calls, 6)) << size << " ranks";
  }
}

TEST(IpcPlan, HoldsWhenItsWordsWrap) {
  Calls calls(3, 256, 2, 0xfffffff0u);
  for (int i = 0; i < 4; ++i) add_everything(calls, 3, DType::fp32, 101);
  EXPECT_TRUE(right_in_every_order(calls));
}

TEST(IpcPlan, CarriesMessagesOneAtATimeAndSendsTheFirstWithoutWaiting) {
  Calls calls(2, 1 << 10, 1);
  for (int64_t numel : {100, 1, 256, 7}) calls.message(DType::fp32, numel);
  EXPECT_TRUE(right_in_every_order(calls));
  Ranks ranks = calls.ranks();
  int alone = 0;
  while (ranks.advance(0)) ++alone;
  EXPECT_EQ(alone, 3) << "a wait that passes, a copy and a signal; the next waits for the receiver";
}

// Were a wait left out, some order of the steps would give other results or read beyond what is there: so the
// orders above would notice it.
TEST(IpcPlan, NeedsItsWaits) {
  const auto without = [](Kind kind, IpcWord word) {
    Calls calls(3, 256, 2);
    for (int i = 0; i < 3; ++i) add_everything(calls, 3, DType::fp32, 101);
    calls.all_reduce(DType::fp32, 101);
    for (auto& rank : calls.made())
      for (Made& call : rank)
        std::erase_if(call.steps, [&](const IpcStep& s) { return s.kind == kind && s.word == word; });
    return right_in_every_order(calls);
  };
  EXPECT_FALSE(without(Kind::wait, IpcWord::ready));
  EXPECT_FALSE(without(Kind::wait, IpcWord::done));
  EXPECT_TRUE(without(Kind::wait, IpcWord::reduced)) << "small chunks have none";
  Calls large(3, 96 << 10, 2);
  for (int i = 0; i < 3; ++i) large.all_reduce(DType::fp32, 60'001);
  for (auto& rank : large.made())
    for (Made& call : rank)
      std::erase_if(call.steps,
                    [](const IpcStep& s) { return s.kind == Kind::wait && s.word == IpcWord::reduced; });
  EXPECT_FALSE(right_in_every_order(large));
}

TEST(IpcPlan, LetsEveryWaitPassWhenTheWordsAreReleased) {
  Calls calls(3, 256, 2);
  add_everything(calls, 3, DType::fp32, 1001);
  uint32_t last = 0;
  for (const Made& call : calls.made()[1])
    for (const IpcStep& s : call.steps) last = std::max(last, s.value);
  for (const Made& call : calls.made()[1])
    for (const IpcStep& s : call.steps)
      EXPECT_TRUE(s.kind != Kind::wait || has_come_to(last + kIpcRelease, s.value));
}

TEST(IpcPlan, RefusesSlotsWithoutRoomForAllRanks) { EXPECT_THROW(IpcPlanner(0, 3, 128, 2), Error); }

}  // namespace
}  // namespace cleave
