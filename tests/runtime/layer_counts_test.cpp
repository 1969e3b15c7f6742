// Layer state that counts: integers are exact in every order.
#include <gtest/gtest.h>

#include "model/check_gradients.h"
#include "tests/runtime/count.h"
#include "tests/runtime/identity.h"
#include "tests/runtime/watched.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

model::Model counted() {
  model::Model m = watched();
  m.layers.insert(m.layers.begin(), std::make_unique<Count>("data"));
  return m;
}

struct Counts {
  std::vector<int64_t> rows = std::vector<int64_t>(size_t(Count::kKinds), Count::kBegin), key = {0};
  bool operator==(const Counts&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Counts& c) {
  for (const int64_t n : c.rows) out << n << " ";
  return out << "key " << c.key[0];
}

// Counts from the data directly.
Counts expected(int64_t steps) {
  Counts out;
  for (int64_t step = 0; step < steps; ++step) {
    out.key[0] = INT64_MIN;
    const std::vector<float> x = features(step);
    for (size_t row = 0; row < size_t(kBatch); ++row) {
      out.rows[size_t(Count::kind_of(x[3 * row]))] += 1;
      out.key[0] = std::max(out.key[0], Count::key_of(x[3 * row]));
    }
  }
  return out;
}

Counts counts_of(runtime::Engine& engine) {
  return {engine.layer_state<int64_t>("data.rows"), engine.layer_state<int64_t>("data.key")};
}

Counts trained(const Ranks& l, int begin, int end, const std::string& from = "", const std::string& to = "",
               bool behind = false) {
  Counts out;
  comm::run_ranks(l.ranks, [&](comm::Communicator& world) {
    config::DsConfig c = watching(l);
    c.checkpoint.async = behind;
    runtime::Engine engine(c, counted(), world, {});
    if (!from.empty()) engine.load_checkpoint(from);
    const int place = engine.mesh().place(world.rank()).data;
    Data data;
    for (int step = begin; step < end; ++step)
      engine.train_batch(data.of(step, c, place, engine.mesh().data));
    const Counts mine = counts_of(engine);
    if (!to.empty()) engine.save_checkpoint(to, "now"), engine.finish_save();
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
    if (world.rank() == 0) out = mine;
  });
  return out;
}

TEST(LayerCounts, AreExactInEveryLayout) {
  const Counts want = expected(3);
  EXPECT_GT(*std::min_element(want.rows.begin(), want.rows.end()), Count::kBegin) << "a kind without a row";
  for (const Ranks& l : {Ranks{1, 0, 1, 8}, Ranks{1, 0, 1, 1}, Ranks{2, 1, 1, 2}, Ranks{4, 3, 1, 2},
                         Ranks{4, 2, 2, 1, 0, "zb-h1"}, Ranks{2, 3, 1, 1, 1}, Ranks{4, 0, 4, 2}}) {
    SCOPED_TRACE(words_of(l));
    EXPECT_EQ(trained(l, 0, 3), want);
  }
}

TEST(LayerCounts, LoadFromCheckpointsInAnyLayoutIncludingBackgroundSaves) {
  for (const bool behind : {false, true})
    for (const Ranks& from : {Ranks{1, 0, 1, 8}, Ranks{4, 2, 2, 1}})
      for (const Ranks& to : {Ranks{2, 3, 1, 2}, Ranks{4, 0, 4, 2}}) {
        SCOPED_TRACE(words_of(from) + " to " + words_of(to));
        Scratch scratch;
        trained(from, 0, 2, "", scratch.path("run"), behind);
        EXPECT_EQ(trained(to, 2, 2, scratch.path("run")), expected(2));
        EXPECT_EQ(trained(to, 2, 4, scratch.path("run")), expected(4));
      }
}

TEST(LayerCounts, AreReadOnlyAsTheirType) {
  const auto alone = comm::self_communicator();
  const config::DsConfig c = watching({});
  runtime::Engine engine(c, counted(), *alone, {});
  EXPECT_EQ(engine.memory_planned().at(MemoryKind::device, Category::layer_state),
            2 * (2 * (1 + 2) * 4 + (Count::kKinds + 1) * 8));
  expect_error(Exit::usage, {"data.rows", "wrong type (it is int64, got a request for fp32"},
               [&] { engine.layer_state("data.rows"); });
  expect_error(Exit::usage, {"outer.largest", "wrong type (it is fp32, got a request for int64"},
               [&] { engine.layer_state<int64_t>("outer.largest"); });
  model::check_gradients(Count("alone"), {DType::fp32, {4, 5}});
}

// Another layer with a state of the same name.
class Other final : public Identity {
 public:
  explicit Other(model::LayerState state) : state_(std::move(state)) {}
  std::vector<model::LayerState> states() const override { return {state_}; }

 private:
  model::LayerState state_;
};

TEST(LayerCounts, RejectUnsupportedTypesAndTypesMissingFromTheCheckpoint) {
  const auto alone = comm::self_communicator();
  const auto with = [&](model::LayerState state) {
    model::Model m = watched();
    m.layers.insert(m.layers.begin(), std::make_unique<Other>(std::move(state)));
    return m;
  };
  const config::DsConfig c = watching({});
  const auto refused = [&](model::LayerState state, std::initializer_list<std::string_view> words) {
    expect_error(Exit::usage, words, [&] { runtime::Engine(c, with(std::move(state)), *alone, {}); });
  };
  refused({.name = "half", .shape = {1}, .dtype = DType::bf16}, {"half", "bf16", "fp32, or int64"});
  refused({.name = "part", .shape = {1}, .dtype = DType::int64, .begin = 0.5},
          {"part", "0.5", "not an integer"});
  refused({.name = "flat", .shape = {}}, {"flat", "no dimension", "{1}"});
  Scratch scratch;
  trained({}, 0, 1, "", scratch.path("run"));
  runtime::Engine other(c, with({.name = "data.key", .shape = {1}}), *alone, {});
  expect_error(Exit::checkpoint, {"layer_state of data.key has the wrong type (got int64, expected fp32)"},
               [&] { other.load_checkpoint(scratch.path("run")); });
}

}  // namespace
}  // namespace cleave::testing
