#include "app/run/many_calls.h"

#include <fmt/core.h>

#include "core/range.h"

namespace cleave::app {
namespace {

constexpr int64_t kMany = 10'000;

// Returns the calls over all units of the model, each cut into pieces of at most `bucket` elements.
int64_t calls_of(const model::Model& model, int64_t bucket) {
  int64_t calls = 0;
  for (const UnitSpec& unit : model.units()) {
    int64_t numel = 0;
    for (const ParamSpec& p : unit.params) numel += p.whole_numel();
    calls += ceil_div(numel, std::max<int64_t>(1, bucket));
  }
  return calls;
}

}  // namespace

std::vector<std::string> warnings_of_many_calls(const config::DsConfig& config, const model::Model& model,
                                                int data_ranks) {
  const config::ZeroConfig& zero = config.zero;
  const int64_t micros = config.gradient_accumulation_steps;
  struct Key {
    const char* name;
    int64_t size, times;  // elements; times per step over the whole model
  };
  const bool shared = data_ranks > 1;
  const Key keys[] = {{"reduce_bucket_size", zero.reduce_bucket_size,
                       !shared           ? 0
                       : zero.stage >= 2 ? micros
                                         : 1},
                      {"allgather_bucket_size", zero.allgather_bucket_size,
                       !shared || zero.stage == 0 ? 0
                       : zero.stage == 3          ? 2 * micros
                                                  : 1},
                      {"sub_group_size", zero.sub_group_size,
                       zero.offload_optimizer.device == config::OffloadDevice::nvme ? 1 : 0}};
  std::vector<std::string> warnings;
  for (const Key& key : keys)
    if (const int64_t calls = key.times * (key.times ? calls_of(model, key.size) : 0); calls > kMany)
      warnings.push_back(
          fmt::format("zero_optimization.{}: too small (got {}, which makes about {} calls per step, each "
                      "with its own latency); leave the key out, or give a size of some millions",
                      key.name, key.size, calls));
  return warnings;
}

}  // namespace cleave::app
