// Update on either side of a device, here a CPU: its streams are threads ordered only by events.
#include "zero/staged_update.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "config_schema/ds_config.h"

namespace cleave::zero {
namespace {

struct Homes {
  MemoryKind state, gradients, weights;
};

struct Unit {
  std::vector<float> param, m, v, gradient, copy;
  explicit Unit(int64_t numel, int seed)
      : param(size_t(numel)), m(param.size()), v(param.size()), gradient(param.size()), copy(param.size()) {
    for (size_t i = 0; i < param.size(); ++i)
      param[i] = float((i * 37 + size_t(seed)) % 101) / 50 - 1,
      gradient[i] = float((i * 11) % 13 + size_t(seed)) / 7;
  }
  optim::UpdateSlice slice(const Homes& h) {
    auto view = [](std::vector<float>& x, MemoryKind kind) {
      return Tensor(x.data(), DType::fp32, {int64_t(x.size())}, kind);
    };
    return {.param = view(param, h.state),
            .grad = view(gradient, h.gradients),
            .copy = view(copy, h.weights),
            .state = {view(m, h.state), view(v, h.state)},
            .decay = true};
  }
};

// Units of less than one piece, of several, and empty; all enqueued at once, as in a step.
std::vector<Unit> units() {
  std::vector<Unit> all;
  for (const int64_t numel : {5, 3 << 20, 0, (1 << 20) + 3, 1 << 20, 70})
    all.emplace_back(numel, int(all.size()));
  return all;
}

constexpr auto kDevice = MemoryKind::device, kHost = MemoryKind::host, kPinned = MemoryKind::pinned;
constexpr Range kAll{0, 3};
constexpr int64_t kLargest = 3 << 20;
const StagedUpdate::Travels kEverything{.kinds = 3, .gradients = DType::fp32, .weights = DType::fp32};

TEST(StagedUpdate, GivesTheBitsOfTheUpdateInPlaceOnEitherSideHoweverManyUnitsAreUnderWay) {
  const auto optimizer = optim::make_optimizer({.type = config::OptimizerType::adamw, .weight_decay = 0.1});
  std::vector<Unit> want = units();
  Stream inline_;
  for (int64_t step = 1; step <= 2; ++step)
    for (Unit& u : want) {
      const optim::UpdateSlice s = u.slice({kDevice, kDevice, kDevice});
      if (s.param.numel() > 0) optimizer->update(s, {.rates = {.lr = 0.1}, .step = step}, inline_);
    }
  for (const auto side : {offload::UpdateSide::host, offload::UpdateSide::device})
    for (const Homes& h :
         {Homes{kPinned, kDevice, kDevice}, Homes{kPinned, kHost, kDevice}, Homes{kPinned, kDevice, kHost},
          Homes{kHost, kHost, kHost}, Homes{kDevice, kDevice, kHost}}) {
      std::vector<Unit> got = units();
      Memory memory;
      Stream compute(Stream::Mode::worker);
      {
        StagedUpdate update(memory, side, kEverything, kLargest);
        for (int64_t step = 1; step <= 2; ++step) {
          update.begin_walk();
          const auto kernels = [&optimizer, step](const optim::UpdateSlice& piece, Range, Stream& stream) {
            optimizer->update(piece, {.rates = {.lr = 0.1}, .step = step}, stream);
          };
          for (Unit& u : got) {
            update.wait(compute.record());
            compute.wait(update.run(kernels, u.slice(h), kAll, kAll));
          }
        }
        compute.synchronize();
      }
      for (size_t u = 0; u < want.size(); ++u) {
        EXPECT_EQ(got[u].param, want[u].param) << "unit " << u;
        EXPECT_EQ(got[u].copy, want[u].copy) << "unit " << u;
        EXPECT_EQ(got[u].v, want[u].v) << "unit " << u;
      }
    }
}

TEST(StagedUpdate, StartsAfterTheAwaitedEventAndEndsAfterItsLastByte) {
  const auto optimizer = optim::make_optimizer({.type = config::OptimizerType::sgd});
  for (const auto side : {offload::UpdateSide::host, offload::UpdateSide::device}) {
    Unit unit((3 << 20) + 7, 1);
    const std::vector<float> before = unit.param;
    Memory memory;
    Stream backward(Stream::Mode::worker), after(Stream::Mode::worker);
    StagedUpdate update(memory, side, kEverything, kLargest);
    backward.enqueue([&] { std::fill(unit.gradient.begin(), unit.gradient.end(), 0.5f); });
    const auto kernels = [&](const optim::UpdateSlice& piece, Range, Stream& stream) {
      optimizer->update(piece, {.rates = {.lr = 1}, .step = 1}, stream);
    };
    update.wait(backward.record());
    after.wait(update.run(kernels, unit.slice({kPinned, kDevice, kDevice}), kAll, kAll));
    int64_t wrong = 0;
    after.enqueue([&] {
      for (size_t i = 0; i < before.size(); ++i)
        wrong += unit.copy[i] != before[i] - 0.5f || unit.param[i] != unit.copy[i];
    });
    after.synchronize();
    EXPECT_EQ(wrong, 0);
  }
}

// Values that kernels leave in their operands reach only the written kinds.
TEST(StagedUpdate, ReadsAndKeepsTheKindsItIsToldToAndSaysWhichPieceItIs) {
  Unit unit((1 << 20) + 5, 3);
  const std::vector<float> param = unit.param;
  Memory memory;
  StagedUpdate update(memory, offload::UpdateSide::device, kEverything, kLargest);
  std::vector<Range> seen;
  const auto kernels = [&](const optim::UpdateSlice& piece, Range range, Stream& stream) {
    seen.push_back(range);
    stream.enqueue([piece] {
      for (const Tensor& t : {piece.param, piece.state[0], piece.state[1]})
        for (float& x : t.span<float>()) x += 1;
    });
  };
  update.run(kernels, unit.slice({kPinned, kHost, kHost}), {0, 3}, {1, 3}).wait();
  EXPECT_EQ(seen, (std::vector<Range>{{0, 1 << 20}, {1 << 20, (1 << 20) + 5}}));
  EXPECT_EQ(unit.param, param);
  EXPECT_EQ(unit.m, std::vector<float>(param.size(), 1));
  EXPECT_EQ(unit.v, std::vector<float>(param.size(), 1));
}

// Slow kernels: following work must not start too early.
TEST(StagedUpdate, KeepsAPieceUntilItsKernelsAreDoneAndReadsThePreviousWalksWrites) {
  for (const auto& [side, count] : {std::pair{offload::UpdateSide::host, 5},
                                    {offload::UpdateSide::device, 5},
                                    {offload::UpdateSide::device, 1}}) {
    const Homes h =
        side == offload::UpdateSide::host ? Homes{kPinned, kDevice, kDevice} : Homes{kHost, kHost, kHost};
    std::vector<Unit> all;
    for (int u = 0; u < count; ++u) all.emplace_back(10, 7 * u);
    const std::vector<Unit> before = all;
    Memory memory;
    StagedUpdate update(memory, side, kEverything, 10);
    const auto kernels = [](const optim::UpdateSlice& piece, Range, Stream& stream) {
      stream.enqueue([piece] {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        for (int64_t i = 0; i < 10; ++i)
          piece.copy.span<float>()[size_t(i)] = piece.param.span<float>()[size_t(i)] +=
              piece.grad.span<float>()[size_t(i)];
      });
    };
    for (int walk = 0; walk < 2; ++walk) {
      update.begin_walk();
      for (Unit& u : all) update.run(kernels, u.slice(h), kAll, kAll);
    }
    update.synchronize();
    for (size_t u = 0; u < all.size(); ++u)
      for (size_t i = 0; i < 10; ++i) {
        const float want = before[u].param[i] + before[u].gradient[i] + before[u].gradient[i];
        EXPECT_EQ(all[u].param[i], want) << "unit " << u;
        EXPECT_EQ(all[u].copy[i], want) << "unit " << u;
      }
  }
}

// The device has separate memory: operands not brought there cannot be read, and results not brought back are
// lost.
TEST(StagedUpdate, WorksInItsOwnMemoryOnEverythingFromTheOtherSide) {
  Unit unit(1000, 3);
  Memory memory;
  StagedUpdate update(memory, offload::UpdateSide::device, kEverything, kLargest);
  const optim::UpdateSlice there = unit.slice({kPinned, kHost, kPinned});
  int pieces = 0;
  update
      .run(
          [&](const optim::UpdateSlice& here, Range, Stream&) {
            for (const auto& [h, t] : {std::pair{here.param, there.param},
                                       {here.grad, there.grad},
                                       {here.copy, there.copy},
                                       {here.state[0], there.state[0]}}) {
              EXPECT_EQ(h.memory(), kDevice);
              EXPECT_NE(h.raw(), t.raw());
            }
            ++pieces;
          },
          there, kAll, kAll)
      .wait();
  EXPECT_EQ(pieces, 1);
}

}  // namespace
}  // namespace cleave::zero
