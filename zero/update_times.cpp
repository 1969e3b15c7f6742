#include "zero/update_times.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <tuple>
#include <typeindex>

#include "device/copy.h"

namespace cleave::zero {
namespace {

constexpr int64_t kNumel = int64_t{8} << 20;  // per tensor: 32 MiB
constexpr double kSeconds = 0.1;              // per measurement

// Returns how often per second `work`, which blocks until done, can run. The first run is a warm-up.
double frequency(const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  work();
  const auto begin = Clock::now();
  double seconds = 0;
  int times = 0;
  for (; seconds < kSeconds; ++times, seconds = std::chrono::duration<double>(Clock::now() - begin).count())
    work();
  return times / seconds;
}

double host_rate(const optim::Optimizer& optimizer, Memory& memory, MemoryKind home) {
  std::vector<Buffer> buffers;
  auto allocate = [&](DType type, int64_t numel) {
    buffers.push_back(memory.allocate(home, Category::staging, type, {numel}, "a measurement"));
    return buffers.back().tensor();
  };
  optim::UpdateSlice slice;
  slice.param = allocate(DType::fp32, kNumel), slice.grad = allocate(DType::fp32, kNumel);
  const size_t states = optimizer.states().size();
  for (size_t s = 0; s < states; ++s) slice.state[s] = allocate(DType::fp32, kNumel);
  const Tensor squares = allocate(DType::fp64, 2);
  Stream stream;
  const double updates = frequency([&] {
    if (optimizer.prepares()) optimizer.prepare(slice, {}, squares, stream);
    optimizer.update(slice, {}, stream);
  });
  return updates * double(slice.param.bytes()) * double(1 + states);
}

UpdateRates measure(const optim::Optimizer& optimizer, Device device, MemoryKind home) {
  Memory memory({}, Memory::Mode::real, device);  // separate: freed before training starts
  UpdateRates rates{.host = host_rate(optimizer, memory, home)};
  auto allocate = [&](MemoryKind kind) {
    return memory.allocate(kind, Category::staging, DType::fp32, {kNumel}, "a measurement");
  };
  const Buffer up_from = allocate(home), up_to = allocate(MemoryKind::device);
  const Buffer down_from = allocate(MemoryKind::device), down_to = allocate(home);
  Stream up(device, Stream::Mode::worker), down(device, Stream::Mode::worker);
  const double copies = frequency([&] {
    copy(up_to, up_from, up), copy(down_to, down_from, down);
    up.synchronize(), down.synchronize();
  });
  rates.to_device = rates.to_host = copies * double(up_from.tensor().bytes());
  return rates;
}

}  // namespace

UpdateTimes update_times(const UpdateBytes& b, const UpdateRates& r) {
  auto slowest = [](double kernels, double up, double down) { return std::max({kernels, up, down}); };
  return {.host = slowest(double(b.state) / r.host, double(b.weights_here) / r.to_device,
                          double(b.gradients_here) / r.to_host),
          .device = slowest(0, double(b.read + b.gradients_at_home) / r.to_device,
                            double(b.written + b.weights_at_home) / r.to_host)};
}

UpdateRates measure_update(const optim::Optimizer& optimizer, Device device, MemoryKind home) {
  using Key = std::tuple<std::type_index, size_t, Device::Kind, int, MemoryKind>;
  static std::mutex mutex;  // ranks may be threads, and parallel measurements would slow each other down
  static std::map<Key, UpdateRates> known;
  const Key key{typeid(optimizer), optimizer.states().size(), device.kind, device.index, home};
  const std::lock_guard lock(mutex);
  if (const auto at = known.find(key); at != known.end()) return at->second;
  return known[key] = measure(optimizer, device, home);
}

std::string describe_update(const UpdateBytes& bytes, const UpdateRates& rates) {
  const UpdateTimes t = update_times(bytes, rates);
  const std::string at =
      fmt::format("{:.2e} bytes of state at {:.3g} GB/s", double(bytes.state), rates.host / 1e9);
  const std::string link =
      fmt::format("link {:.3g} + {:.3g} GB/s", rates.to_device / 1e9, rates.to_host / 1e9);
  if (t.device < t.host)
    return fmt::format(
        "update: streamed through the GPU, {:.2g} s a step ({}); on the host it would take {:.2g} s ({})",
        t.device, link, t.host, at);
  return fmt::format(
      "update: on the host, {:.2g} s a step ({}); streamed through the GPU it would take {:.2g} s ({})",
      t.host, at, t.device, link);
}

}  // namespace cleave::zero
