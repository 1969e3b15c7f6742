#include "app/run/resume_check.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "app/run/run_facts.h"
#include "checkpoint/checksum.h"
#include "config_schema/ds_config.h"
#include "core/json.h"

namespace cleave::app {
namespace {

using nlohmann::json;

// Sums the checksums of single samples, so that the sum does not depend on their distribution over
// ranks.
uint64_t checksums_of(const Batch& batch, int64_t samples) {
  uint64_t sum = 0;
  const int64_t length = batch.targets.numel() / samples;
  for (int64_t s = 0; s < samples; ++s) {
    checkpoint::Checksum one;
    for (const Tensor& t : {batch.input, batch.targets, batch.documents})
      if (t.defined()) one.add(t.as<int32_t>() + s * length, length * int64_t(sizeof(int32_t)));
    sum += one.value();
  }
  return sum;
}

std::string type_of(const config::DsConfig& c) {
  if (c.zero.stage == 3 && c.zero.quantized_weights) return "int8";  // block boundaries depend on the layout
  return c.precision == config::Precision::fp32 && c.tf32 ? "tf32" : std::string(name_of(c.precision));
}

json without(json facts, std::initializer_list<const char*> keys) {
  for (const char* key : keys) facts.erase(key);
  return facts;
}

}  // namespace

std::optional<FirstLoss> FirstLoss::of_next_step(runtime::Engine& engine, data::TokenBatches& batches,
                                                 launcher::Job& job) {
  const config::DsConfig& c = engine.config();
  const int64_t step = engine.step();
  uint64_t samples = 0;
  bool readable = true;
  try {
    batches.prepare(step);
    // Ranks with the same data coordinate have the same samples.
    const MeshPlace at = engine.place();
    for (int64_t m = 0; m < c.gradient_accumulation_steps && at.pipe + at.sequence + at.tensor == 0; ++m)
      samples += checksums_of(batches.next(step, m), c.train_micro_batch_size_per_gpu);
  } catch (const Error&) {
    readable = false;  // the run reports the reason itself
  }
  if (job.any(!readable)) return {};
  auto word = int64_t(samples);
  Stream stream;
  job.world().all_reduce(Tensor(&word, DType::int64, {1}, MemoryKind::host), stream,
                         {.what = "samples of the next step"});
  stream.synchronize();
  FirstLoss first{.samples = uint64_t(word), .batch = c.train_batch_size, .type = type_of(c)};
  first.loss =
      engine
          .evaluate([&](int micro) { return batches.next(step, micro); }, int(c.gradient_accumulation_steps))
          .loss;
  if (!std::isfinite(first.loss)) return {};
  return first;
}

std::optional<FirstLoss> FirstLoss::in(const nlohmann::json& facts) {
  try {
    const nlohmann::json& j = facts.at("first_loss");
    return FirstLoss{.loss = j.at("loss"),
                     .samples = std::stoull(j.at("samples").get<std::string>(), nullptr, 16),
                     .batch = counted(j.at("batch")),
                     .type = j.at("type")};
  } catch (const std::exception&) {
    return {};
  }
}

nlohmann::json FirstLoss::json() const {
  return {{"loss", loss}, {"samples", fmt::format("{:016x}", samples)}, {"batch", batch}, {"type", type}};
}

double allowed_difference(const std::string& type, const std::string& other, double magnitude) {
  const auto of = [](const std::string& t) {
    return t == "fp32"                  ? 2e-5
           : t == "bf16" || t == "int8" ? 0x1p-8
                                        : 0x1p-10;  // 16 bits: twice the error of one rounding
  };
  return std::max(of(type), of(other)) * std::max(1.0, std::fabs(magnitude));
}

std::string not_comparable(const json& saved, const json& now, int64_t batch) {
  const std::optional<FirstLoss> first = FirstLoss::in(saved);
  if (!first) return "the checkpoint has no first loss";
  if (first->batch != batch)
    return fmt::format("train_batch_size is {} now and was {} in the checkpoint", batch, first->batch);
  const std::vector<std::string> changes =
      changes_of_facts(without(saved, {"config"}), without(now, {"config"}));
  return changes.empty() ? "" : changes.front();
}

std::string difference(const FirstLoss& saved, const FirstLoss& now, const json& saved_facts,
                       const json& facts) {
  if (saved.samples != now.samples)
    return "the data: the samples of the next step differ, although --data has the same size, begin and end "
           "as in the checkpoint";
  const double allowed = allowed_difference(saved.type, now.type, saved.loss);
  if (std::fabs(saved.loss - now.loss) <= allowed) return "";
  const std::string losses = fmt::format(
      "the loss of the next step is {:.6g} and was {:.6g} in the checkpoint; rounding explains at most "
      "{:.2g}",
      now.loss, saved.loss, allowed);
  const std::vector<std::string> changes =
      changes_of_facts({{"config", saved_facts.value("config", json())}}, facts);
  if (!changes.empty()) return fmt::format("the configuration: {}: {}", losses, changes.front());
  return fmt::format(
      "the weights, or their computation: {}, although samples and model are the same; cleave verify checks "
      "all checksums",
      losses);
}

}  // namespace cleave::app
