#include "runtime/stage/passes.h"

#include <map>

namespace cleave::runtime {
namespace {

// Checks that a unit's gradients are complete at one known point of the step: the end of one kind of pass.
class Writers {
 public:
  void add(int unit, const std::string& name, int pass) {
    const auto [at, added] = writer_.try_emplace(unit, pass);
    require(added || at->second == pass, Exit::usage,
            "pipeline.virtual_stages: two layers that share {} are in two chunks of one rank; use "
            "pipeline.virtual_stages 1 and a schedule without split backward",
            name);
  }

 private:
  std::map<int, int> writer_;
};

}  // namespace

Passes::Passes(const StageLayers& layers, zero::PlannedVisits& planned) {
  const StageShape& shape = layers.shape();
  const zero::ParameterStore& store = planned.store();
  std::map<std::string, int> known;
  for (int u = 0; u < store.units(); ++u) known[store.layout(u).name()] = u;
  Writers writers;
  auto indices = [&](const std::vector<UnitSpec>& units, int pass) {
    std::vector<int> out;
    for (const UnitSpec& u : units) {
      out.push_back(known.at(u.name));
      if (shape.trains && !u.frozen) writers.add(out.back(), u.name, pass);
    }
    return out;
  };
  using Visits = std::vector<zero::Visit>;
  struct Units {
    Visits forward, weight;
    std::vector<int> head;
  };
  std::vector<Units> units(shape.chunks.size());
  for (int c = 0; c < layers.chunks(); ++c) {
    Units& chunk = units[size_t(c)];
    for (int l = 0; l < layers.layers(c); ++l)
      chunk.forward.push_back(
          {indices(layers.layer(c, l).units(), layers.splits(c, l) ? 2 * c + 1 : 2 * c), false});
    if (layers.has_head(c)) chunk.head = indices(layers.model().head->units(), 2 * c);
    for (int l = layers.layers(c); l-- > 0;)
      if (layers.splits(c, l)) chunk.weight.push_back({chunk.forward[size_t(l)].units, true, false});
  }
  for (int c = 0; c < layers.chunks(); ++c) {
    const Units& chunk = units[size_t(c)];
    auto visits = [&](Visits before, const std::vector<Stop>& stops) {
      for (const Stop& s : stops)
        if (s.layer == layers.layers(c))
          before.push_back({chunk.head, true});
        else
          before.push_back({chunk.forward[size_t(s.layer)].units, s.backward && !layers.splits(c, s.layer)});
      return before;
    };
    OfChunk& passes = chunks_.emplace_back();
    passes.forward = planned.add_pass(chunk.forward);
    if (layers.has_head(c)) {
      Visits evaluate = chunk.forward;
      evaluate.push_back({chunk.head, false});
      evaluation_ = planned.add_pass(std::move(evaluate));
    }
    if (!shape.trains) continue;
    const auto stops = [&](bool alive) {
      return backward_stops(layers.layers(c), shape.recompute, layers.has_head(c), alive, c);
    };
    passes.fused = stops(layers.may_stay()), passes.apart = stops(false);
    passes.train = planned.add_pass(visits(chunk.forward, passes.fused));
    passes.backward = planned.add_pass(visits({}, passes.apart));
    passes.weight = planned.add_pass(chunk.weight);
  }
}

}  // namespace cleave::runtime
