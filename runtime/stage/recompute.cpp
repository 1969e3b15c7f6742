#include "runtime/stage/recompute.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
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

void keep_layers(Recompute& recompute, const config::CheckpointingConfig& c, int rank,
                 const std::vector<int>& chunks) {
  if (!c.by_rank()) return;
  const int64_t full = c.full[size_t(rank)], less = full + c.selective[size_t(rank)];
  const int64_t all = std::accumulate(chunks.begin(), chunks.end(), int64_t{0});
  require(
      less <= all, Exit::usage,
      "activation_checkpointing.full_layers and selective_layers: pipeline rank {} has {} layers (got {} + "
      "{}); lower its numbers",
      rank, all, full, less - full);
  recompute.interval = full > 0 ? 1 : 0;
  for (const int layers : chunks) recompute.kept.emplace_back(size_t(layers), Kept::all);
  for (int64_t depth = 0, n = 0; n < less; ++depth)
    for (size_t chunk = chunks.size(); chunk-- > 0;)
      if (depth < chunks[chunk] && n < less)
        recompute.kept[chunk][size_t(chunks[chunk] - 1 - depth)] = n++ < full ? Kept::input : Kept::part;
}

std::vector<Stop> backward_stops(int layers, const Recompute& recompute, bool head, bool alive, int chunk) {
  std::vector<Stop> stops;
  if (head) stops.push_back({.layer = layers, .backward = true});
  const int together = recompute.again() ? int(std::min<int64_t>(recompute.interval, layers)) : layers;
  for (int begin = 0, end = layers; end > 0; end = begin) {
    begin = (end - 1) / together * together;
    const bool again = recompute.again(chunk, end - 1) && !(alive && end == layers);
    for (int l = begin; again && l < end - 1; ++l) stops.push_back({.layer = l, .again = true});
    for (int l = end; l-- > begin;)
      stops.push_back({.layer = l, .again = again && l == end - 1, .backward = true});
  }
  return stops;
}

}  // namespace cleave::runtime
