// Activation checkpointing gives the same bits as keeping everything.
#include "runtime/stage/recompute.h"

#include "pipeline/schedule.h"
#include "tests/runtime/compare.h"
#include "tests/sampled.h"

namespace cleave::testing {
namespace {

config::DsConfig config(int data, int zero, int accumulation, int stages = 1,
                        const std::string& schedule = "1f1b") {
  config::DsConfig c = config_for(data, 1, accumulation);
  c.zero.stage = zero, c.zero.overlap_comm = zero == 3;
  c.pipeline.stages = stages, c.pipeline.schedule = schedule;
  c.pipeline.virtual_stages = schedule == "interleaved" && stages > 1 ? 2 : 1;
  return c;
}

void use(config::DsConfig& c, config::Precision precision) {
  c.precision = precision;
  c.fp16.enabled = precision == config::Precision::fp16, c.fp16.initial_scale_power = 10;
}

DType type_of(config::Precision p) {
  return p == config::Precision::fp32   ? DType::fp32
         : p == config::Precision::bf16 ? DType::bf16
                                        : DType::fp16;
}

constexpr int64_t kEveryLayer = 100;  // more than the layers of any model here

TEST(BackwardStops, RunEachGroupAgainBeforeItsBackwardAndTheLastLayerOfItInOneStop) {
  using Stops = std::vector<runtime::Stop>;
  const runtime::Stop head{5, false, true};
  const auto again = [](int l) { return runtime::Stop{l, true, false}; };
  const auto both = [](int l) { return runtime::Stop{l, true, true}; };
  const auto back = [](int l) { return runtime::Stop{l, false, true}; };
  EXPECT_EQ(runtime::backward_stops(3, {}, false, false), (Stops{back(2), back(1), back(0)}));
  EXPECT_EQ(runtime::backward_stops(3, {.interval = 1}, false, false), (Stops{both(2), both(1), both(0)}));
  EXPECT_EQ(runtime::backward_stops(5, {.interval = 2}, true, false),
            (Stops{head, both(4), again(2), both(3), back(2), again(0), both(1), back(0)}));
  EXPECT_EQ(runtime::backward_stops(5, {.interval = 3}, true, true),
            (Stops{head, back(4), back(3), again(0), again(1), both(2), back(1), back(0)}));
  EXPECT_EQ(runtime::backward_stops(2, {.interval = kEveryLayer}, false, true), (Stops{back(1), back(0)}));
}

TEST(BackwardStops, ANumberOfCheckpointsIsAnIntervalOfTheWholeModel) {
  EXPECT_EQ(runtime::recompute_of({.number = 3}, 8).interval, 3);
  EXPECT_EQ(runtime::recompute_of({.number = 100}, 8).interval, 1);
  EXPECT_EQ(runtime::recompute_of({.interval = 2}, 8).interval, 2);
  EXPECT_EQ(runtime::recompute_of({}, 8).interval, 0);
}

struct Setting {
  int pipe, data, zero, accumulation;
  const char* schedule;
  config::Precision precision;
  float dropout;
};

// Every ZeRO stage, schedule, type and dropout with every interval; the deep model has 8 layers.
TEST(Recompute, GivesTheBitsOfKeepingEverything) {
  std::vector<Setting> settings;
  for (int zero : {0, 1, 2, 3})
    for (const config::Precision p :
         {config::Precision::fp32, config::Precision::bf16, config::Precision::fp16})
      settings.push_back({1, 2, zero, 2, "1f1b", p, zero % 2 ? 0.3f : 0.0f});
  for (const std::string& schedule : pipeline::schedule_names())
    for (int zero : {0, 2, 3})
      for (const config::Precision p : {config::Precision::fp32, config::Precision::bf16})
        settings.push_back({3, zero == 0 ? 1 : 2, zero, 4, schedule.c_str(), p, zero == 2 ? 0.0f : 0.3f});
  Sampled sampled;
  for (const Setting& s : settings)
    for (bool tied : {false, true}) {
      if ((tied && s.precision == config::Precision::fp16) || !sampled.next()) continue;
      config::DsConfig c = config(s.data, s.zero, s.accumulation, s.pipe, s.schedule);
      use(c, s.precision);
      const auto run = [&] {
        return train_on(
            s.pipe * s.data, c, [&] { return deep_gpt(tied, type_of(s.precision), s.dropout); }, 2);
      };
      const Training want = run();
      for (int64_t interval : {int64_t{1}, int64_t{2}, int64_t{3}, kEveryLayer}) {
        c.checkpointing.interval = interval;
        expect_same_bits(run(), want,
                         fmt::format("pipe {} zero {} {} precision {} dropout {} tied {} interval {}", s.pipe,
                                     s.zero, s.schedule, int(s.precision), s.dropout, tied, interval));
      }
    }
}

TEST(Recompute, GivesTheBitsOfKeepingEverythingForLlamaWorkerStreamsAndOffload) {
  for (int zero : {1, 3}) {
    config::DsConfig c = config(2, zero, 3);
    c.zero.offload_optimizer.device = config::OffloadDevice::cpu, c.zero.overlap_comm = true;
    const Training want = train_on(
        2, c, [] { return small_llama(); }, 3);
    for (int64_t interval : {int64_t{1}, int64_t{2}, kEveryLayer}) {
      c.checkpointing.interval = interval;
      for (const Stream::Mode mode : {Stream::Mode::inline_, Stream::Mode::worker})
        expect_same_bits(train_on(2, c, [] { return small_llama(); }, 3, {.compute = mode}), want,
                         fmt::format("zero {} interval {}", zero, interval));
    }
  }
}

TEST(Recompute, WithInputsOnTheHostGivesTheBitsOfKeepingEverything) {
  Sampled sampled;
  for (int zero : {0, 3})
    for (int pipe : {1, 2})
      for (const std::string& schedule : pipeline::schedule_names()) {
        config::DsConfig c = config(2, zero, 3, pipe, schedule);
        const auto run = [&](Stream::Mode mode) {
          return train_on(2 * pipe, c, [] { return deep_gpt(false, DType::fp32, 0.3f); }, 3,
                          {.compute = mode});
        };
        const Training want = run(Stream::Mode::inline_);
        c.checkpointing.to_host = true;
        for (int64_t interval : {int64_t{1}, int64_t{2}, int64_t{3}, kEveryLayer}) {
          c.checkpointing.interval = interval;
          for (const Stream::Mode mode : {Stream::Mode::inline_, Stream::Mode::worker})
            if (sampled.next())
              expect_same_bits(run(mode), want,
                               fmt::format("zero {} pipe {} {} interval {}", zero, pipe, schedule, interval));
        }
      }
}

// Layers of one rank that keep all, less and only their input side by side, in every schedule; the deep model
// has 8 layers and a final norm.
TEST(Recompute, OfLayersByRankGivesTheBitsOfKeepingEverything) {
  Sampled sampled;
  for (const config::Precision p : {config::Precision::fp32, config::Precision::bf16})
    for (int zero : {0, 1, 3})
      for (int pipe : {1, 2})
        for (const std::string& schedule : pipeline::schedule_names()) {
          if (!sampled.next()) continue;
          config::DsConfig c = config(2, zero, 3, pipe, schedule);
          use(c, p);
          const auto run = [&] {
            return train_on(
                2 * pipe, c, [&] { return deep_gpt(false, type_of(p), 0.3f); }, 2);
          };
          const Training want = run();
          for (const int64_t full : {0, 1, 3}) {
            c.checkpointing.full.assign(size_t(pipe), full),
                c.checkpointing.selective.assign(size_t(pipe), 1);
            c.checkpointing.full.back() = 1;
            expect_same_bits(
                run(), want,
                fmt::format("{} pipe {} zero {} precision {} full {}", schedule, pipe, zero, int(p), full));
          }
        }
}

TEST(Recompute, SelectivelyGivesTheBitsOfKeepingEverything) {
  for (const config::Precision p :
       {config::Precision::fp32, config::Precision::bf16, config::Precision::fp16})
    for (int zero : {0, 3})
      for (const std::string& schedule : pipeline::schedule_names())
        for (const auto& model :
             {+[](DType t) { return deep_gpt(false, t, 0.3f); }, +[](DType t) { return small_llama(t); },
              +[](DType t) { return small_llama(t, model::kQwen3); }}) {
          config::DsConfig c = config(1, zero, 3, 2, schedule);
          if (model(DType::fp32).layers.size() < 5) c.pipeline.virtual_stages = 1;
          use(c, p);
          const auto run = [&] {
            return train_on(
                2, c, [&] { return model(type_of(p)); }, 2);
          };
          const Training want = run();
          c.checkpointing.lean = true;
          expect_same_bits(run(), want, fmt::format("{} zero {} precision {}", schedule, zero, int(p)));
        }
}

}  // namespace
}  // namespace cleave::testing
