// Commands that read checkpoints, for a model with layer state.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "app/commands.h"
#include "checkpoint/checkpoint.h"
#include "tests/runtime/count.h"
#include "tests/runtime/watched.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {
using nlohmann::json;

// Saves a checkpoint after two steps: counts in int64, the largest value in fp32.
void save(const Ranks& l, const std::string& dir) {
  comm::run_ranks(l.ranks, [&](comm::Communicator& world) {
    model::Model m = model::make_mlp({{3, 8, 8, 4}}, DType::fp32, "counted");
    m.layers.insert(m.layers.begin(), std::make_unique<Watch>("outer"));
    m.layers.insert(m.layers.begin() + 2, std::make_unique<Count>("rows"));
    m.layers.insert(m.layers.begin(), std::make_unique<Count>("data"));
    const config::DsConfig c = watching(l);
    runtime::Engine engine(c, std::move(m), world, {});
    Data data;
    for (int step = 0; step < 2; ++step)
      engine.train_batch(data.of(step, c, engine.mesh().place(world.rank()).data, engine.mesh().data));
    engine.save_checkpoint(dir, "now");
  });
}

std::string said(int (*command)(const app::Arguments&), const app::Arguments& arguments) {
  ::testing::internal::CaptureStdout();
  command(arguments);
  return ::testing::internal::GetCapturedStdout();
}

std::string digits(const std::string& bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

TEST(LayerStateCommands, InspectListsEachStateWithItsTypeAndItsBytes) {
  Scratch scratch;
  save({2, 2, 1, 2}, scratch.path("run"));
  const json seen = json::parse(said(app::run_inspect, {scratch.path("run"), "--json"}));
  std::map<std::string, json> states;
  int64_t bytes = 0;
  for (const json& t : seen["tensors"]) {
    bytes += t["bytes"].get<int64_t>();
    if (t["kind"] == "layer_state") states[t["tensor"]] = t;
  }
  ASSERT_EQ(states.size(), 5u);
  EXPECT_EQ(seen["bytes"], bytes);
  for (const auto& [name, type, shape, size] :
       {std::tuple{"data.rows", "int64", json{3}, 24}, std::tuple{"data.key", "int64", json{1}, 8},
        std::tuple{"outer.largest", "fp32", json{1}, 4}}) {
    EXPECT_EQ(states[name]["dtype"], type) << name;
    EXPECT_EQ(states[name]["shape"], shape) << name;
    EXPECT_EQ(states[name]["bytes"], size) << name;
    EXPECT_EQ(states[name]["records"], 1) << name;
  }
  const std::string table = said(app::run_inspect, {scratch.path("run")});
  EXPECT_NE(table.find("layer_state      5 tensors  68 B"), table.npos) << table;
  EXPECT_NE(table.find("layer_state  data.rows"), table.npos) << table;
}

TEST(LayerStateCommands, DigestIsThatOfTheValuesInEveryLayoutAndRoundsNoCounts) {
  std::vector<int64_t> rows(size_t(Count::kKinds), Count::kBegin);
  int64_t key = INT64_MIN;
  float largest = 0;
  for (int step = 0; step < 2; ++step) {
    key = INT64_MIN;
    const std::vector<float> x = features(step);
    for (size_t i = 0; i < x.size(); ++i) {
      largest = std::max(largest, std::abs(x[i]));
      if (i % 3 == 0) rows[size_t(Count::kind_of(x[i]))] += 1, key = std::max(key, Count::key_of(x[i]));
    }
  }
  // The other counter follows a trained layer, so its value is not known beforehand.
  for (const Ranks& l : {Ranks{1, 0, 1, 4}, Ranks{4, 2, 2, 1}, Ranks{2, 3, 1, 2}}) {
    SCOPED_TRACE(words_of(l));
    Scratch scratch;
    save(l, scratch.path("run"));
    const checkpoint::CheckpointReader reader(scratch.path("run"), "latest");
    const auto stored = [&](const char* name, std::vector<int64_t> shape, int64_t numel) {
      std::vector<int64_t> out(size_t(numel), 0);
      reader.read(
          {"layer_state",
           name,
           std::move(shape),
           {{0, numel}},
           {},
           [&](Range r, Tensor from) { std::copy_n(from.as<int64_t>(), r.size(), out.begin() + r.begin); },
           DType::int64});
      return out;
    };
    const std::string lines = fmt::format(
        "data.key [1] {}\ndata.rows [3] {}\nouter.largest [1] {}\nrows.key [1] {}\nrows.rows [3] {}\n",
        digits(bytes_of<int64_t>({key})), digits(bytes_of(rows)), digits(bytes_of<float>({largest})),
        digits(bytes_of(stored("rows.key", {1}, 1))), digits(bytes_of(stored("rows.rows", {3}, 3))));
    const std::string printed = said(app::run_digest, {scratch.path("run")});
    EXPECT_NE(printed.find(digits(lines) + "  layer_state\n"), printed.npos) << printed;
  }
  ASSERT_EQ(largest, 2.5f) << "a number that bf16 has";
  Scratch scratch;
  save({}, scratch.path("run"));
  const auto of_state = [](const std::string& printed) {
    return printed.substr(printed.find("layer_state") - 34, 34);
  };
  EXPECT_EQ(of_state(said(app::run_digest, {scratch.path("run")})),
            of_state(said(app::run_digest, {scratch.path("run"), "--dtype", "bf16"})));
}

TEST(LayerStateCommands, VerifyReadsEveryByteOfAState) {
  Scratch scratch;
  save({2, 1, 1, 2}, scratch.path("run"));
  const std::string whole = said(app::run_verify, {scratch.path("run"), "--quiet"});
  EXPECT_NE(whole.find("is complete: "), whole.npos) << whole;
  const std::string file = "run/now/shard-00000.safetensors", text = scratch.read(file);
  const checkpoint::SafetensorsFile shard(scratch.path(file));
  for (const std::string name : {"layer_state/data.rows[0:3]", "layer_state/outer.largest[0:1]"}) {
    const checkpoint::StoredTensor& t = shard.tensors().at(name);
    const int64_t last = shard.offset(name) + (t.end - t.begin) - 1;
    std::string damaged = text;
    damaged[size_t(last)] = char(damaged[size_t(last)] ^ 1);
    scratch.write(file, damaged);
    ::testing::internal::CaptureStdout();
    expect_error(Exit::checkpoint, {"has 1 fault"}, [&] {
      app::run_verify({scratch.path("run"), "--quiet"});
    });
    const std::string fault = ::testing::internal::GetCapturedStdout();
    EXPECT_NE(
        fault.find(fmt::format("bytes {} to {}, of {}, do not match", shard.offset(name), last + 1, name)),
        fault.npos)
        << fault;
  }
}

}  // namespace
}  // namespace cleave::testing
