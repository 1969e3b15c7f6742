// Executes calls of comm/ipc/collective_steps.h step by step in host memory.
#pragma once
#include <algorithm>
#include <cstring>

#include "comm/ipc/collective_steps.h"
#include "comm/reduce.h"
#include "tests/comm/collective_values.h"

namespace cleave::comm::test {

using Kind = comm::IpcStep::Kind;

// One call of one rank.
struct SimulatedCall {
  comm::IpcSteps steps;
  DType dtype;
  Bytes in, want;
  Bytes out = {};
  bool in_place = false;  // `out` is `in`
  int64_t out_at = 0;     // start of `out` within `in`, in place
  Reduction by = Reduction::sum;
};

struct SimulatedRank {
  std::vector<SimulatedCall> calls;
  Bytes segment;
  uint32_t words[comm::kIpcWords] = {};
  size_t call = 0, step = 0;
  bool finished() const { return call == calls.size(); }
};

class SimulatedRanks {
 public:
  explicit SimulatedRanks(std::vector<std::vector<SimulatedCall>> calls, int64_t segment, uint32_t start)
      : ranks_(calls.size()) {
    for (size_t r = 0; r < calls.size(); ++r) {
      ranks_[r].calls = std::move(calls[r]);
      ranks_[r].segment.assign(size_t(segment), std::byte{0xEE});
      std::fill_n(ranks_[r].words, comm::kIpcWords, start);
    }
  }

  // Executes one step of rank r; false if it has finished or must wait.
  bool advance(size_t r) {
    SimulatedRank& me = ranks_[r];
    while (!me.finished() && me.step == me.calls[me.call].steps.size()) ++me.call, me.step = 0;
    if (me.finished() || !take(me, me.calls[me.call], me.calls[me.call].steps[me.step])) return false;
    ++me.step;
    return true;
  }
  bool finished() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const SimulatedRank& r) { return r.finished(); });
  }
  size_t size() const { return ranks_.size(); }
  bool right() const {
    for (const SimulatedRank& r : ranks_)
      for (const SimulatedCall& c : r.calls) {
        const Bytes& memory = c.in_place ? c.in : c.out;
        if (!std::equal(c.want.begin(), c.want.end(), memory.begin() + (c.in_place ? c.out_at : 0)))
          return false;
      }
    return true;
  }

 private:
  bool take(SimulatedRank& me, SimulatedCall& c, const comm::IpcStep& s) {
    std::byte *in = c.in.data(), *out = c.in_place ? in + c.out_at : c.out.data();
    const size_t bytes = size_t(s.bytes);
    switch (s.kind) {
      case Kind::wait:
        return comm::has_come_to(ranks_[size_t(s.rank)].words[size_t(s.word)], s.value);
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
      case Kind::reduce: {
        std::vector<const std::byte*> sources;
        for (const SimulatedRank& r : ranks_)
          sources.push_back(&r == &me ? in + s.own : r.segment.data() + s.from);
        comm::reduce_in_order(c.by, c.dtype, out + s.to, sources, s.bytes / size_of(c.dtype));
        return true;
      }
      case Kind::signal:
        me.words[size_t(s.word)] = s.value;
        return true;
    }
    return false;
  }

  std::vector<SimulatedRank> ranks_;
};

// Calls of all kinds, with expected results on every rank.
class SimulatedCalls {
 public:
  SimulatedCalls(int size, int64_t slot_bytes, int slots, uint32_t start = 0)
      : size_(size), start_(start), made_(size_t(size)) {
    for (int r = 0; r < size; ++r) planners_.emplace_back(r, size, slot_bytes, slots, start);
  }

  void all_gather(DType t, int64_t shard, Range piece, bool in_place) {
    each([&](int r, comm::IpcStepBuilder& p) {
      SimulatedCall m{p.all_gather(size_of(t), shard, piece),
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
        // The planner's `in` is the shard. Here, it is a part of `out`, so the steps' offsets change
        // accordingly.
        for (comm::IpcStep& s : m.steps) {
          if (s.kind == Kind::put || s.kind == Kind::move) s.from += r * shard * size_of(t);
        }
        m.in = full, m.in_place = true;
      }
      return m;
    });
  }
  void reduce_scatter(DType t, int64_t shard, Range piece, bool in_place, Reduction by) {
    each([&](int r, comm::IpcStepBuilder& p) {
      SimulatedCall m{p.reduce_scatter(size_of(t), shard, piece),
                      t,
                      input(t, r, shard * size_),
                      {},
                      Bytes(size_t(shard * size_of(t)), std::byte{7})};
      m.in_place = in_place, m.out_at = in_place ? r * shard * size_of(t) : 0, m.by = by;
      m.want =
          in_place ? Bytes(m.in.begin() + m.out_at, m.in.begin() + m.out_at + shard * size_of(t)) : m.out;
      const Bytes sum = expected(by, t, size_, shard, r * shard);
      std::copy(sum.begin() + piece.begin * size_of(t), sum.begin() + piece.end * size_of(t),
                m.want.begin() + piece.begin * size_of(t));
      return m;
    });
  }
  void all_reduce(DType t, int64_t numel, Reduction by = Reduction::sum) {
    each([&](int r, comm::IpcStepBuilder& p) {
      return SimulatedCall{.steps = p.all_reduce(size_of(t), numel),
                           .dtype = t,
                           .in = input(t, r, numel),
                           .want = expected(by, t, size_, numel),
                           .in_place = true,
                           .by = by};
    });
  }
  void broadcast(DType t, int64_t numel, int root) {
    each([&](int r, comm::IpcStepBuilder& p) {
      return SimulatedCall{.steps = p.broadcast(size_of(t), numel, root),
                           .dtype = t,
                           .in = input(t, r, numel),
                           .want = input(t, root, numel),
                           .in_place = true};
    });
  }
  void all_to_all(DType t, int64_t block) {
    each([&](int r, comm::IpcStepBuilder& p) {
      SimulatedCall m{p.all_to_all(size_of(t), block, {0, block}),
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
    each([&](int r, comm::IpcStepBuilder& p) {
      const int64_t bytes = numel * size_of(t);
      const Bytes sent = input(t, 9, numel);
      if (r == 0) return SimulatedCall{.steps = p.send(bytes), .dtype = t, .in = sent, .want = {}};
      return SimulatedCall{
          .steps = p.recv(bytes), .dtype = t, .in = {}, .want = sent, .out = Bytes(sent.size())};
    });
  }

  SimulatedRanks ranks() const { return SimulatedRanks(made_, planners_[0].segment_bytes(), start_); }
  std::vector<std::vector<SimulatedCall>>& made() { return made_; }

 private:
  template <class Make>
  void each(Make make) {
    for (int r = 0; r < size_; ++r) made_[size_t(r)].push_back(make(r, planners_[size_t(r)]));
  }

  int size_;
  uint32_t start_;
  std::vector<comm::IpcStepBuilder> planners_;
  std::vector<std::vector<SimulatedCall>> made_;
};

}  // namespace cleave::comm::test
