// The order in which a stage visits its layers, for the store.
#include <map>

#include "runtime/stage.h"

namespace cleave {
namespace {

// A unit's gradients must be complete at one point of the step that is known: the end of one kind of pass.
class Writers {
 public:
  void add(int unit, const std::string& name, int pass) {
    const auto [at, added] = writer_.try_emplace(unit, pass);
    require(
        added || at->second == pass, Exit::usage,
        "two layers share {} and lie in two chunks of one rank; use pipeline.virtual_stages 1 and a schedule "
        "that does not split the backward",
        name);
  }

 private:
  std::map<int, int> writer_;
};

}  // namespace

void Stage::add_passes(const std::function<ZeroPlan(const UnitSpec&)>& plan_of) {
  std::map<std::string, int> known;
  Writers writers;
  auto indices = [&](const std::vector<UnitSpec>& units, int pass) {
    std::vector<int> out;
    for (const UnitSpec& u : units) {
      const auto [at, added] = known.try_emplace(u.name, 0);
      if (added) at->second = store_.add_unit(u, plan_of(u));
      require(u.frozen == store_.layout(at->second).frozen(), Exit::usage,
              "two layers share {}, and it is frozen in one of them only; say the same in both", u.name);
      out.push_back(at->second);
      if (shape_.trains && !u.frozen) writers.add(at->second, u.name, pass);
    }
    return out;
  };
  using Visits = std::vector<ParameterStore::Visit>;
  struct Chunk {
    Visits forward, weight;
    std::vector<int> head;
  };
  std::vector<Chunk> chunks(shape_.chunks.size());
  for (int c = 0; c < int(chunks.size()); ++c) {
    Chunk& chunk = chunks[size_t(c)];
    for (int l = 0; l < layers(c); ++l)
      chunk.forward.push_back({indices(layer(c, l).units(), splits(c, l) ? 2 * c + 1 : 2 * c), false});
    if (has_head(c)) chunk.head = indices(model_.head->units(), 2 * c);
    for (int l = layers(c); l-- > 0;)
      if (splits(c, l)) chunk.weight.push_back({chunk.forward[size_t(l)].units, true, false});
  }
  for (int c = 0; c < int(chunks.size()); ++c) {
    const Chunk& chunk = chunks[size_t(c)];
    auto visits = [&](Visits before, const std::vector<Stop>& stops) {
      for (const Stop& s : stops)
        if (s.layer == layers(c))
          before.push_back({chunk.head, true});
        else
          before.push_back({chunk.forward[size_t(s.layer)].units, s.backward && !splits(c, s.layer)});
      return before;
    };
    Passes passes;
    passes.forward = store_.add_pass(chunk.forward);
    if (has_head(c)) {
      Visits evaluate = chunk.forward;
      evaluate.push_back({chunk.head, false});
      eval_pass_ = store_.add_pass(std::move(evaluate));
    }
    passes_.push_back(passes);
    if (!shape_.trains) continue;
    passes.fused = backward_stops(layers(c), shape_.recompute, has_head(c), may_stay());
    passes.apart = backward_stops(layers(c), shape_.recompute, has_head(c), false);
    passes.train = store_.add_pass(visits(chunk.forward, passes.fused));
    passes.backward = store_.add_pass(visits({}, passes.apart));
    passes.weight = store_.add_pass(chunk.weight);
    passes_.back() = std::move(passes);
  }
}

}  // namespace cleave
