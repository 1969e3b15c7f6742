#include "runtime/stage/recompute.h"

#include <algorithm>

#include "core/range.h"

namespace cleave::runtime {

Recompute recompute_of(const config::CheckpointingConfig& c, int layers) {
  const int64_t by_number = c.number > 0 ? ceil_div(int64_t(layers), c.number) : 0;
  const int64_t interval = c.interval > 0 ? c.interval : by_number;
  return {.interval = interval,
          .lean = c.lean,
          .to_host = c.to_host && interval > 0,
          .partition = c.partition && interval > 0};
}

std::vector<Stop> backward_stops(int layers, const Recompute& recompute, bool head, bool alive) {
  std::vector<Stop> stops;
  if (head) stops.push_back({.layer = layers, .backward = true});
  const int together = recompute.again() ? int(std::min<int64_t>(recompute.interval, layers)) : layers;
  for (int begin = 0, end = layers; end > 0; end = begin) {
    begin = (end - 1) / together * together;
    const bool again = recompute.again() && !(alive && end == layers);
    for (int l = begin; again && l < end - 1; ++l) stops.push_back({.layer = l, .again = true});
    for (int l = end; l-- > begin;)
      stops.push_back({.layer = l, .again = again && l == end - 1, .backward = true});
  }
  return stops;
}

}  // namespace cleave::runtime
