#include "plan/fit_layers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "comm/planned.h"

namespace cleave::plan {
namespace {

// Number of layers on a rank, and device memory by number of savings: the first n are lean layers, and from
// then on each turns one of them into a layer that runs again.
class Stage {
 public:
  Stage(int rank, int layers) : rank_(rank), layers_(layers) {}

  int most() const { return 2 * layers_; }
  void set(config::CheckpointingConfig& c, int savings) const {
    const int full = std::max(0, savings - layers_);
    c.full[size_t(rank_)] = full, c.selective[size_t(rank_)] = std::min(savings, layers_) - full;
  }

 private:
  int rank_, layers_;
};

}  // namespace

bool fit_layers(config::DsConfig& config, int world, const MakerOf& maker, const MemoryLimits& limits) {
  config::CheckpointingConfig& c = config.checkpointing;
  if (c.policy != config::CheckpointingPolicy::fit || c.by_rank()) return false;
  const int stages = std::max(1, config.pipeline.stages);
  c.full.assign(size_t(stages), 0), c.selective = c.full;
  const EngineMaker make = maker(config);
  const MeshShape mesh = [&] {
    const auto ranks = comm::planned_communicator(0, world);
    return make(*ranks, {.dry = true})->mesh();
  }();
  bool possible = true;
  for (const int rank : ranks_to_try(mesh, PlanRanks::of_stages)) {
    const auto ranks = comm::planned_communicator(rank, world);
    const Stage stage(mesh.place(rank).pipe, make(*ranks, {.dry = true})->layers_here());
    // A saving that needs the block of a layer that runs again may need more memory than the one before it,
    // so the search ends with steps of one.
    const auto fits = [&](int savings) {
      stage.set(c, savings);
      const auto engine = make(*comm::planned_communicator(rank, world), {.dry = true});
      return engine->memory_planned().total(MemoryKind::device) <= limits.device_bytes;
    };
    // If a rank never fits, the others need no search.
    possible = possible && fits(stage.most());
    int low = possible ? 0 : stage.most(), high = stage.most();
    while (low < high) {
      const int middle = (low + high) / 2;
      if (fits(middle))
        high = middle;
      else
        low = middle + 1;
    }
    while (low < stage.most() && !fits(low)) ++low;
    stage.set(c, low);
  }
  return true;
}

std::string format_layers(const config::CheckpointingConfig& c) {
  return c.by_rank()
             ? fmt::format("full {}, selective {}", fmt::join(c.full, ","), fmt::join(c.selective, ","))
             : "";
}

}  // namespace cleave::plan
