#include "device/batch.h"

#include <algorithm>

#include "core/error.h"

namespace cleave {
namespace {

template <class T>
Tensor on_host(std::span<const T> values, Shape shape) {
  return Tensor(const_cast<T*>(values.data()), dtype_of<T>(), shape, MemoryKind::host);
}

Batch with_targets(Tensor input, std::span<const int32_t> targets) {
  const auto valid =
      std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t != kIgnoredTarget; });
  return {.input = input, .targets = on_host(targets, {int64_t(targets.size())}), .valid_targets = valid};
}

}  // namespace

Batch batch_of(std::span<const int32_t> tokens, std::span<const int32_t> targets) {
  require(!targets.empty() && tokens.size() % targets.size() == 0, Exit::data,
          "batch: wrong number of targets (got {} for {} tokens, expected one per token or one per equal "
          "sequence)",
          targets.size(), tokens.size());
  return with_targets(on_host(tokens, {int64_t(tokens.size())}), targets);
}

Batch batch_of(std::span<const float> features, std::span<const int32_t> targets) {
  require(!targets.empty() && features.size() % targets.size() == 0, Exit::data,
          "batch: features not divisible by targets (got {} features, {} targets)", features.size(),
          targets.size());
  const auto rows = int64_t(targets.size());
  return with_targets(on_host(features, {rows, int64_t(features.size()) / rows}), targets);
}

}  // namespace cleave
