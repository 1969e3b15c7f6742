#include "kernels/cuda/trial.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>

#include "core/environment.h"
#include "core/warnings.h"
#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave::kernels::gpu {
namespace {

struct Verdicts {
  std::mutex mutex;
  std::map<std::pair<std::string, int>, bool> known;  // by name and GPU
};

Verdicts& verdicts() {
  static Verdicts all;
  return all;
}

template <class T>
Verdict first_difference(const char* what, const Tensor& got, const Tensor& want, double bound,
                         Stream& stream) {
  const std::vector<T> a = to_host<T>(got, stream), b = to_host<T>(want, stream);
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = to_float(a[i]), y = to_float(b[i]);
    if (!(std::fabs(x - y) <= bound * (1 + std::fabs(y))))
      return fmt::format("{}[{}] is {:.6g}, the own kernels give {:.6g}", what, i, x, y);
  }
  return {};
}

}  // namespace

bool all_aligned(std::initializer_list<Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.raw()) % 16 == 0; });
}

// The trial runs without the lock: its stream may wait for another rank of this process, which may need the
// lock.
bool proved(const std::string& name, const char* variable, Stream& stream,
            const std::function<Verdict()>& trial) {
  Verdicts& all = verdicts();
  const std::pair key(name, cuda_queue(stream).device());
  {
    const std::lock_guard lock(all.mutex);
    if (const auto at = all.known.find(key); at != all.known.end()) return at->second;
  }
  const bool off = environment_value(variable) == "off";
  const Verdict verdict = off ? Verdict() : trial();
  const std::lock_guard lock(all.mutex);
  const auto [at, first] = all.known.emplace(key, !off && verdict.empty());
  if (first && !verdict.empty()) report_unused(name, variable, key.second, verdict);
  return at->second;
}

void report_unused(const std::string& name, const char* variable, int device, const Verdict& verdict) {
  warn("cuda:{}: {} is not used: {}; {}=off spares the trial", device, name, verdict, variable);
}

TrialSpace::TrialSpace(Stream& stream) : stream_(stream) {
  CudaQueue& queue = cuda_queue(stream);
  if (queue.scratch_bytes() >= kForKernels + kBytes)
    begin_ = static_cast<std::byte*>(queue.scratch(kForKernels + kBytes)) + kForKernels;
}

Tensor TrialSpace::take(DType type, Shape shape) {
  const Tensor x(begin_ + used_, type, shape);
  used_ += round_up(x.bytes(), 256);
  CHECK(begin_ && used_ <= kBytes, "a trial takes {} bytes, it has {}", used_, kBytes);
  return x;
}

Tensor TrialSpace::random(DType type, Shape shape, float spread) {
  const Tensor rounded = type == DType::fp32 ? Tensor() : take(type, shape);
  const int64_t mark = used_;
  const Tensor x = take(DType::fp32, shape);
  launch(RandomFill{.y = x, .philox = {.seed = 1, .stream = ++drawn_}, .scale = spread}, stream_);
  if (type == DType::fp32) return x;
  launch(Cast{.y = rounded, .x = x}, stream_);
  used_ = mark;
  return rounded;
}

Verdict difference(const char* what, const Tensor& got, const Tensor& want, double bound, Stream& stream) {
  return with_float(got.dtype(), [&](auto zero) {
    return first_difference<decltype(zero)>(what, got, want, bound, stream);
  });
}

}  // namespace cleave::kernels::gpu
