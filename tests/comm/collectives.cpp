#include "tests/comm/collectives.h"

#include <algorithm>

namespace cleave::test {
namespace {

using Bytes = std::vector<std::byte>;

// A value that depends on everything, whose sums are inexact in every float type.
double value(int rank, int64_t i) {
  return double((i * 7919 + rank * 104729) % 100'003) / 1e4 * ((i + rank) % 3 ? 1 : -0.37);
}

template <class T>
T make(double v) {
  if constexpr (std::is_same_v<T, fp16> || std::is_same_v<T, bf16>)
    return from_float<T>(float(v));
  else if constexpr (std::is_integral_v<T>)
    return T(int64_t(v * 1e8));
  else
    return T(v);
}

template <class Visit>
void with_type(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::fp32:
      return visit(float{});
    case DType::fp64:
      return visit(double{});
    case DType::fp16:
      return visit(fp16{});
    case DType::bf16:
      return visit(bf16{});
    case DType::int32:
      return visit(int32_t{});
    case DType::int64:
      return visit(int64_t{});
    case DType::uint8:
      return visit(uint8_t{});
    case DType::uint16:
      return visit(uint16_t{});
  }
}

Bytes input(DType dtype, int rank, int64_t numel, int64_t first = 0) {
  Bytes bytes(size_t(numel * size_of(dtype)));
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < numel; ++i) {
      const T v = make<T>(value(rank, first + i));
      std::memcpy(bytes.data() + size_t(i) * sizeof(T), &v, sizeof(T));
    }
  });
  return bytes;
}

template <class T>
T add_in_order(int ranks, int64_t i) {
  if constexpr (std::is_same_v<T, fp16> || std::is_same_v<T, bf16>) {
    float sum = to_float(make<T>(value(0, i)));
    for (int r = 1; r < ranks; ++r) sum += to_float(make<T>(value(r, i)));
    return from_float<T>(sum);
  } else if constexpr (std::is_integral_v<T>) {
    uint64_t sum = 0;
    for (int r = 0; r < ranks; ++r) sum += uint64_t(make<T>(value(r, i)));
    return T(sum);
  } else {
    T sum = make<T>(value(0, i));
    for (int r = 1; r < ranks; ++r) sum += make<T>(value(r, i));
    return sum;
  }
}

Bytes expected_sum(DType dtype, int ranks, int64_t numel, int64_t first = 0) {
  Bytes bytes(size_t(numel * size_of(dtype)));
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < numel; ++i) {
      const T v = add_in_order<T>(ranks, first + i);
      std::memcpy(bytes.data() + size_t(i) * sizeof(T), &v, sizeof(T));
    }
  });
  return bytes;
}

Bytes expected_gather(DType dtype, int ranks, int64_t shard) {
  Bytes all;
  for (int r = 0; r < ranks; ++r) {
    const Bytes one = input(dtype, r, shard);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

Tensor view(Bytes& bytes, DType dtype) {
  // data() of an empty vector may be null, and every tensor of a call should be defined.
  static std::byte nothing;
  return {bytes.empty() ? &nothing : bytes.data(), dtype, {int64_t(bytes.size()) / size_of(dtype)}};
}

void same(const Bytes& got, const Bytes& want, const std::string& what) {
  EXPECT_ON_RANK(got.size() == want.size(), "{}: {} bytes, wanted {}", what, got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_ON_RANK(got[i] == want[i], "{}: byte {} of {} is {}, wanted {}", what, i, got.size(), int(got[i]),
                   int(want[i]));
}

void all_gathers(Communicator& c, DType dtype, int64_t shard_numel, const Call& call) {
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

void reduce_scatters(Communicator& c, DType dtype, int64_t shard_numel, const Call& call) {
  Stream stream;
  const int64_t first = c.rank() * shard_numel;
  const Bytes want = expected_sum(dtype, c.size(), shard_numel, first);
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

void all_reduces(Communicator& c, DType dtype, int64_t numel, const Call& call) {
  Stream stream;
  Bytes t = input(dtype, c.rank(), numel);
  c.all_reduce(view(t, dtype), stream, call);
  same(t, expected_sum(dtype, c.size(), numel), "all_reduce");
}

void broadcasts(Communicator& c, DType dtype, int64_t numel, const Call& call) {
  Stream stream;
  const int root = c.size() - 1;
  Bytes t = input(dtype, c.rank(), numel);
  c.broadcast(view(t, dtype), root, stream, call);
  same(t, input(dtype, root, numel), "broadcast");
}

void all_to_alls(Communicator& c, DType dtype, int64_t block, const Call& call) {
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

void everything(Communicator& c, DType dtype, int64_t numel, const Call& call = {}) {
  Stream stream;
  all_gathers(c, dtype, numel, call);
  broadcasts(c, dtype, numel, call);
  all_to_alls(c, dtype, numel, call);
  c.barrier(stream, call);
  if (dtype == DType::uint8 || dtype == DType::uint16) return;
  reduce_scatters(c, dtype, numel, call);
  all_reduces(c, dtype, numel, call);
}

}  // namespace

void expect_collectives(const Transport& transport, DType dtype) {
  for (int size : transport.sizes)
    transport.run(size,
                  [&](Communicator& c) {
                    for (int64_t numel : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1001}})
                      everything(c, dtype, numel);
                    if (size == 2 || dtype == DType::fp32) everything(c, dtype, transport.large_numel);
                  },
                  {});
}

void expect_cuts_change_nothing(const Transport& transport) {
  for (int size : transport.sizes)
    transport.run(size,
                  [&](Communicator& c) {
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

void expect_bytes_counted(const Transport& transport) {
  for (int size : transport.sizes)
    transport.run(size,
                  [](Communicator& c) {
                    Stream stream;
                    const int64_t n = c.size(), numel = 11;
                    Bytes full(size_t(numel * n * 4)), shard(size_t(numel * 4)), odd(size_t((2 * n + 1) * 4));
                    c.all_gather(view(full, DType::fp32), view(shard, DType::fp32), stream, {.max_numel = 3});
                    c.reduce_scatter(view(shard, DType::fp32), view(full, DType::fp32), stream);
                    c.all_reduce(view(odd, DType::fp32), stream);
                    c.broadcast(view(shard, DType::fp32), 0, stream);
                    Bytes exchanged(full.size());
                    c.all_to_all(view(exchanged, DType::fp32), view(full, DType::fp32), stream,
                                 {.max_numel = 5});
                    CommBytes want;
                    // 2n + 1 elements are cut into parts of 3 while they last.
                    const int64_t part = std::clamp<int64_t>(2 * n + 1 - 3 * c.rank(), 0, 3);
                    if (n > 1) {
                      want[Collective::all_gather] = (n - 1) * numel * 4;
                      want[Collective::reduce_scatter] = (n - 1) * numel * 4;
                      want[Collective::all_to_all] = (n - 1) * numel * 4;
                      want[Collective::all_reduce] = (2 * n + 1 - part + part * (n - 1)) * 4;
                      if (c.rank() == 0) want[Collective::broadcast] = numel * 4;
                    }
                    EXPECT_ON_RANK(c.bytes() == want, "rank {} of {} counted other bytes", c.rank(), n);
                    if (n == 1) return;
                    if (c.rank() == 0) c.send(view(shard, DType::fp32), 1, stream);
                    if (c.rank() == 1) c.recv(view(shard, DType::fp32), 0, stream);
                    EXPECT_ON_RANK(c.bytes()[Collective::send] == (c.rank() == 0 ? numel * 4 : 0), "send");
                  },
                  {});
}

void expect_point_to_point(const Transport& transport) {
  for (int size : transport.sizes) {
    if (size == 1) continue;
    transport.run(size,
                  [&](Communicator& c) {
                    Stream stream;
                    const int next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
                    // Everybody sends everything before anybody receives.
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
                    // One-forward-one-backward between neighbours: two channels, in opposite directions.
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
        [](Communicator& c) {
          Stream stream;
          // Odd and even ranks, the order turned round.
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
          EXPECT_ON_RANK(c.bytes() == CommBytes{}, "a split was counted");
        },
        {});
}

void expect_streams(const Transport& transport) {
  for (int size : transport.sizes)
    transport.run(size,
                  [](Communicator& c) {
                    // Two groups on two streams, and one group on both: calls of a group run in the order
                    // they were made.
                    auto other = c.duplicate("other");
                    Stream a(Stream::Mode::worker), b(Stream::Mode::worker);
                    std::vector<Bytes> data;
                    for (int i = 0; i < 40; ++i) data.push_back(input(DType::fp32, c.rank(), 100 + i));
                    for (int i = 0; i < 40; ++i) {
                      Communicator& group = i % 4 < 2 ? c : *other;
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

}  // namespace cleave::test
