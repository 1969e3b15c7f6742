// The host's update beside a device, which is a CPU here: its streams are threads that only events order.
#include "zero/host_update.h"

#include <gtest/gtest.h>

#include "config_schema/ds_config.h"
#include "core/philox.h"

namespace cleave {
namespace {

struct Unit {
  std::vector<float> param, m, v, gradient, copy;
  explicit Unit(int64_t numel, int seed)
      : param(size_t(numel)), m(param.size()), v(param.size()), gradient(param.size()), copy(param.size()) {
    for (size_t i = 0; i < param.size(); ++i)
      param[i] = float((i * 37 + size_t(seed)) % 101) / 50 - 1,
      gradient[i] = float((i * 11) % 13 + size_t(seed)) / 7;
  }
  UpdateSlice slice(MemoryKind gradients, MemoryKind weights) {
    auto view = [](std::vector<float>& x, MemoryKind kind) {
      return Tensor(x.data(), DType::fp32, {int64_t(x.size())}, kind);
    };
    return {.param = view(param, MemoryKind::pinned),
            .grad = view(gradient, gradients),
            .copy = view(copy, weights),
            .state = {view(m, MemoryKind::pinned), view(v, MemoryKind::pinned)},
            .decay = true};
  }
};

// Units of less than a tile, of several, of none; all enqueued at once, as a step does.
std::vector<Unit> units() {
  std::vector<Unit> all;
  for (const int64_t numel : {5, 3 << 20, 0, (1 << 20) + 3, 1 << 20, 70})
    all.emplace_back(numel, int(all.size()));
  return all;
}

TEST(HostUpdate, GivesTheBitsOfTheUpdateInPlaceHoweverManyUnitsAreUnderWay) {
  const auto optimizer = make_optimizer({.type = "AdamW", .weight_decay = 0.1});
  std::vector<Unit> want = units();
  Stream inline_;
  for (int64_t step = 1; step <= 2; ++step)
    for (Unit& u : want) {
      const UpdateSlice s = u.slice(MemoryKind::device, MemoryKind::device);
      if (s.param.numel() > 0) optimizer->update(s, {.lr = 0.1, .step = step}, inline_);
    }
  for (const auto gradients : {MemoryKind::device, MemoryKind::host})
    for (const auto weights : {MemoryKind::device, MemoryKind::host}) {
      std::vector<Unit> got = units();
      Memory memory;
      Stream compute(Stream::Mode::worker);
      {
        HostUpdate host(memory, DType::fp32, DType::fp32, gradients == MemoryKind::device);
        for (int64_t step = 1; step <= 2; ++step) {
          const auto kernels = [&optimizer, step](const UpdateSlice& piece, Stream& stream) {
            optimizer->update(piece, {.lr = 0.1, .step = step}, stream);
          };
          for (Unit& u : got)
            compute.wait(host.update(kernels, u.slice(gradients, weights), compute.record()));
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

TEST(HostUpdate, StartsAfterWhatItWasToldToWaitForAndItsEventComesAfterItsLastByte) {
  const auto optimizer = make_optimizer({.type = "SGD"});
  Unit unit((3 << 20) + 7, 1);
  const std::vector<float> before = unit.param;
  Memory memory;
  Stream backward(Stream::Mode::worker), after(Stream::Mode::worker);
  HostUpdate host(memory, DType::fp32, DType::fp32, true);
  backward.enqueue([&] { std::fill(unit.gradient.begin(), unit.gradient.end(), 0.5f); });
  const auto kernels = [&](const UpdateSlice& piece, Stream& stream) {
    optimizer->update(piece, {.lr = 1, .step = 1}, stream);
  };
  after.wait(host.update(kernels, unit.slice(MemoryKind::device, MemoryKind::device), backward.record()));
  int64_t wrong = 0;
  after.enqueue([&] {
    for (size_t i = 0; i < before.size(); ++i) wrong += unit.copy[i] != before[i] - 0.5f;
  });
  after.synchronize();
  EXPECT_EQ(wrong, 0);
}

TEST(HostUpdate, PublishesMastersOfAnySizeToTheDeviceAndToTheHost) {
  for (const auto weights : {MemoryKind::device, MemoryKind::pinned}) {
    Unit unit((2 << 20) + 5, 3);
    Memory memory;
    HostUpdate host(memory, DType::fp32, DType::fp32, false);
    const UpdateSlice s = unit.slice(MemoryKind::host, weights);
    host.publish(s.copy, s.param, {}).wait();
    EXPECT_EQ(unit.copy, unit.param);
  }
}

}  // namespace
}  // namespace cleave
