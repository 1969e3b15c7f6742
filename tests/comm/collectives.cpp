#include "tests/comm/collectives.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/comm/collective_values.h"

namespace cleave::comm::test {
namespace {

void all_gathers(comm::Communicator& c, DType dtype, int64_t shard_numel, const comm::Call& call) {
  Stream stream;
  const Bytes want = expected_gather(dtype, c.size(), shard_numel);
  Bytes shard = input(dtype, c.rank(), shard_numel), full(want.size());
  c.all_gather(view(full, dtype), view(shard, dtype), stream, call);
  same(full, want, "all_gather");
  same(shard, input(dtype, c.rank(), shard_numel), "shard of all_gather");

  Bytes in_place(want.size());
  if (!shard.empty())
    std::memcpy(in_place.data() + size_t(c.rank()) * shard.size(), shard.data(), shard.size());
  const Tensor t = view(in_place, dtype);
  c.all_gather(t, t.slice(Range{0, shard_numel}.shifted(c.rank() * shard_numel)), stream, call);
  same(in_place, want, "all_gather in place");
}

void reduce_scatters(comm::Communicator& c, DType dtype, int64_t shard_numel, const comm::Call& call) {
  Stream stream;
  const int64_t first = c.rank() * shard_numel;
  const Bytes want = expected(call.by, dtype, c.size(), shard_numel, first);
  const Bytes original = input(dtype, c.rank(), shard_numel * c.size());
  Bytes full = original, shard(want.size());
  c.reduce_scatter(view(shard, dtype), view(full, dtype), stream, call);
  same(shard, want, "reduce_scatter");
  same(full, original, "full of reduce_scatter");

  const Tensor t = view(full, dtype);
  c.reduce_scatter(t.slice({first, first + shard_numel}), t, stream, call);
  const auto at = full.begin() + int64_t(want.size()) * c.rank();
  same(Bytes(at, at + int64_t(want.size())), want, "reduce_scatter in place");
}

void all_reduces(comm::Communicator& c, DType dtype, int64_t numel, const comm::Call& call) {
  Stream stream;
  Bytes t = input(dtype, c.rank(), numel);
  c.all_reduce(view(t, dtype), stream, call);
  same(t, expected(call.by, dtype, c.size(), numel), "all_reduce");
}

void broadcasts(comm::Communicator& c, DType dtype, int64_t numel, const comm::Call& call) {
  Stream stream;
  const int root = c.size() - 1;
  Bytes t = input(dtype, c.rank(), numel);
  c.broadcast(view(t, dtype), root, stream, call);
  same(t, input(dtype, root, numel), "broadcast");
}

void all_to_alls(comm::Communicator& c, DType dtype, int64_t block, const comm::Call& call) {
  Stream stream;
  const Bytes original = input(dtype, c.rank(), block * c.size());
  Bytes in = original, out(in.size()), want;
  c.all_to_all(view(out, dtype), view(in, dtype), stream, call);
  for (int r = 0; r < c.size(); ++r) {
    const Bytes theirs = input(dtype, r, block, c.rank() * block);
    want.insert(want.end(), theirs.begin(), theirs.end());
  }
  same(out, want, "all_to_all");
  same(in, original, "what all_to_all read");
}

void everything(comm::Communicator& c, DType dtype, int64_t numel, const comm::Call& call = {}) {
  Stream stream;
  all_gathers(c, dtype, numel, call);
  broadcasts(c, dtype, numel, call);
  all_to_alls(c, dtype, numel, call);
  c.barrier(stream, call);
  if (dtype == DType::uint8 || dtype == DType::uint16) return;
  for (const Reduction by : {Reduction::sum, Reduction::max}) {
    comm::Call reduction = call;
    reduction.by = by;
    reduce_scatters(c, dtype, numel, reduction);
    all_reduces(c, dtype, numel, reduction);
  }
}

}  // namespace

void expect_collectives(const Transport& transport, DType dtype) {
  for (int size : transport.sizes)
    transport.run(size,
                  [&](comm::Communicator& c) {
                    for (int64_t numel : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1001}})
                      everything(c, dtype, numel);
                    if (size == 2 || dtype == DType::fp32) everything(c, dtype, transport.large_numel);
                  },
                  {});
}

void expect_cuts_change_nothing(const Transport& transport) {
  for (int size : transport.sizes)
    transport.run(size,
                  [&](comm::Communicator& c) {
                    const auto cut = [&](int64_t numel, int64_t max_numel) {
                      everything(c, DType::fp32, numel, {.what = "pieces", .max_numel = max_numel});
                    };
                    cut(transport.slow_calls ? 3 : 37, 1);
                    cut(transport.slow_calls ? 23 : 777, 10);
                    cut(777, 1000);
                    cut(1, 1000);
                  },
                  {});
}

// Pieces of shards in any order equal the whole; elements outside of a piece are unchanged.
void expect_pieces_of_shards(const Transport& transport) {
  for (int size : transport.sizes)
    transport.run(size,
                  [](comm::Communicator& c) {
                    Stream stream;
                    const int64_t numel = 11, all = numel * c.size();
                    const DType type = DType::fp32;
                    Bytes shard = input(type, c.rank(), numel), full(size_t(all * 4), std::byte{7});
                    Bytes terms = input(type, c.rank(), all), sum(size_t(numel * 4), std::byte{7});
                    for (const Range piece : {Range{5, 11}, Range{0, 0}, Range{0, 4}}) {
                      c.all_gather(view(full, type), view(shard, type), stream, {.within = piece});
                      c.reduce_scatter(view(sum, type), view(terms, type), stream,
                                       {.max_numel = 3, .within = piece});
                    }
                    Bytes want = expected_gather(type, c.size(), numel),
                          sums = expected_sum(type, c.size(), numel, c.rank() * numel);
                    for (int64_t r = 0; r < c.size(); ++r)
                      std::fill_n(want.begin() + (r * numel + 4) * 4, 4, std::byte{7});
                    std::fill_n(sums.begin() + 4 * 4, 4, std::byte{7});
                    same(full, want, "gathered pieces");
                    same(sum, sums, "summed pieces");
                    const int64_t sent = (c.size() - 1) * 10 * 4;
                    EXPECT_ON_RANK(c.bytes()[comm::Collective::all_gather] == sent &&
                                       c.bytes()[comm::Collective::reduce_scatter] == sent,
                                   "pieces of {} bytes were counted as other bytes", sent);
                  },
                  {});
}

// Each rank has a NaN at another element, and all have one at the last element.
void expect_max_of_numbers(const Transport& transport) {
  for (int size : transport.sizes)
    transport.run(size,
                  [](comm::Communicator& c) {
                    Stream stream;
                    const int n = c.size();
                    std::vector<float> x(size_t(n) + 1);
                    for (int i = 0; i < n; ++i) x[size_t(i)] = float(-10 - c.rank() * (i % 2 ? 1 : -1));
                    x[size_t(c.rank())] = x[size_t(n)] = std::numeric_limits<float>::quiet_NaN();
                    if (n == 1) x[0] = -10;
                    c.all_reduce(Tensor(x.data(), DType::fp32, {n + 1}), stream, {.by = Reduction::max});
                    stream.synchronize();
                    for (int i = 0; i < n; ++i) {
                      // Even elements grow with the rank, odd ones fall; element i misses rank i.
                      const int largest = i % 2 ? (i == 0 ? 1 : 0) : (n - 1 == i ? n - 2 : n - 1);
                      const float want = n == 1 ? -10 : float(-10 + (i % 2 ? -largest : largest));
                      EXPECT_ON_RANK(x[size_t(i)] == want, "element {} is {}, wanted {}", i, x[size_t(i)],
                                     want);
                    }
                    EXPECT_ON_RANK(std::isnan(x[size_t(n)]), "a NaN of all ranks became {}", x[size_t(n)]);
                  },
                  {});
}

void expect_bytes_counted(const Transport& transport) {
  for (int size : transport.sizes)
    transport.run(
        size,
        [](comm::Communicator& c) {
          Stream stream;
          const int64_t n = c.size(), numel = 11;
          Bytes full(size_t(numel * n * 4)), shard(size_t(numel * 4)), odd(size_t((2 * n + 1) * 4));
          c.all_gather(view(full, DType::fp32), view(shard, DType::fp32), stream, {.max_numel = 3});
          c.reduce_scatter(view(shard, DType::fp32), view(full, DType::fp32), stream);
          c.all_reduce(view(odd, DType::fp32), stream);
          c.broadcast(view(shard, DType::fp32), 0, stream);
          Bytes exchanged(full.size());
          c.all_to_all(view(exchanged, DType::fp32), view(full, DType::fp32), stream, {.max_numel = 5});
          comm::CommBytes want;
          // 2n + 1 elements are cut into parts of 3; the last ones are shorter or empty.
          const int64_t part = std::clamp<int64_t>(2 * n + 1 - 3 * c.rank(), 0, 3);
          if (n > 1) {
            want[comm::Collective::all_gather] = (n - 1) * numel * 4;
            want[comm::Collective::reduce_scatter] = (n - 1) * numel * 4;
            want[comm::Collective::all_to_all] = (n - 1) * numel * 4;
            want[comm::Collective::all_reduce] = (2 * n + 1 - part + part * (n - 1)) * 4;
            if (c.rank() == 0) want[comm::Collective::broadcast] = numel * 4;
          }
          EXPECT_ON_RANK(c.bytes() == want, "rank {} of {} counted other bytes", c.rank(), n);
          if (n == 1) return;
          if (c.rank() == 0) c.send(view(shard, DType::fp32), 1, stream);
          if (c.rank() == 1) c.recv(view(shard, DType::fp32), 0, stream);
          EXPECT_ON_RANK(c.bytes()[comm::Collective::send] == (c.rank() == 0 ? numel * 4 : 0), "send");
        },
        {});
}

void expect_point_to_point(const Transport& transport) {
  for (int size : transport.sizes) {
    if (size == 1) continue;
    transport.run(size,
                  [&](comm::Communicator& c) {
                    Stream stream;
                    const int next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
                    // All ranks send everything before any receives.
                    std::vector<int64_t> sizes = {1, 0, 1000, transport.large_numel, 3};
                    for (int64_t numel : sizes) {
                      Bytes t = input(DType::bf16, c.rank(), numel, numel);
                      c.send(view(t, DType::bf16), next, stream);
                    }
                    for (int64_t numel : sizes) {
                      Bytes t(size_t(numel * 2));
                      c.recv(view(t, DType::bf16), before, stream);
                      same(t, input(DType::bf16, before, numel, numel), "received");
                    }
                    // One-forward-one-backward between neighbors: two channels, in opposite directions.
                    for (int micro = 0; micro < 20; ++micro) {
                      Bytes activation = input(DType::fp32, micro, 5000),
                            gradient = input(DType::fp32, 1000 + micro, 5000);
                      Bytes got(activation.size());
                      if (c.rank() % 2 == 0 && next > c.rank()) {
                        c.send(view(activation, DType::fp32), next, stream);
                        c.recv(view(got, DType::fp32), next, stream);
                        same(got, gradient, "gradient");
                      } else if (c.rank() % 2 == 1) {
                        c.recv(view(got, DType::fp32), before, stream);
                        c.send(view(gradient, DType::fp32), before, stream);
                        same(got, activation, "activation");
                      }
                    }
                    c.barrier(stream);
                  },
                  {});
  }
}

void expect_splits(const Transport& transport) {
  for (int size : transport.sizes)
    transport.run(
        size,
        [](comm::Communicator& c) {
          Stream stream;
          // Odd and even ranks, in reverse order.
          const int members = (c.size() + 1 - c.rank() % 2) / 2;
          auto half = c.split({c.rank() % 2, members - 1 - c.rank() / 2, members}, "half");
          EXPECT_ON_RANK(half->size() == members, "{} members, wanted {}", half->size(), members);
          EXPECT_ON_RANK(half->rank() == members - 1 - c.rank() / 2, "rank {} of {}", half->rank(), members);
          EXPECT_ON_RANK(half->name() == "half", "called {}", half->name());
          int32_t sum = c.rank();
          half->all_reduce(Tensor(&sum, DType::int32, {1}), stream);
          int32_t want = 0;
          for (int r = c.rank() % 2; r < c.size(); r += 2) want += r;
          EXPECT_ON_RANK(sum == want, "sum over half is {}, wanted {}", sum, want);
          auto alone = half->split({half->rank(), 0, 1}, "alone");
          EXPECT_ON_RANK(alone->size() == 1 && alone->rank() == 0, "alone has {}", alone->size());
          auto again = c.duplicate("again");
          EXPECT_ON_RANK(again->rank() == c.rank() && again->size() == c.size(), "rank {}", again->rank());
          again->barrier(stream);
          EXPECT_ON_RANK(c.bytes() == comm::CommBytes{}, "a split was counted");
        },
        {});
}

void expect_streams(const Transport& transport) {
  for (int size : transport.sizes)
    transport.run(size,
                  [](comm::Communicator& c) {
                    // Two groups on two streams, and one group on both: calls of a group run in host call
                    // order.
                    auto other = c.duplicate("other");
                    Stream a(Stream::Mode::worker), b(Stream::Mode::worker);
                    std::vector<Bytes> data;
                    for (int i = 0; i < 40; ++i) data.push_back(input(DType::fp32, c.rank(), 100 + i));
                    for (int i = 0; i < 40; ++i) {
                      comm::Communicator& group = i % 4 < 2 ? c : *other;
                      group.all_reduce(view(data[size_t(i)], DType::fp32), (i + i / 8) % 2 ? a : b);
                    }
                    a.synchronize();
                    b.synchronize();
                    for (int i = 0; i < 40; ++i)
                      same(data[size_t(i)], expected_sum(DType::fp32, c.size(), 100 + i),
                           fmt::format("call {}", i));
                  },
                  {});
}

}  // namespace cleave::comm::test
