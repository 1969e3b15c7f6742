#include <fmt/format.h>

#include <numeric>

#include "bench/machine_rows.h"
#include "comm/communicator.h"
#include "config/read_config.h"
#include "core/error.h"
#include "model/presets.h"
#include "runtime/engine.h"

namespace cleave::bench {

Row step_row(DType type, const Limits& limits) {
  constexpr int64_t kSeq = 1024;
  const std::string text = fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "bf16": {{"enabled": {}}},
           "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4}}}}}})",
      type == DType::bf16);
  const config::ReadResult read = config::read_ds_config(text, "cleave bench");
  CHECK(read.ok(), "the step's configuration: {}", config::format(read.problems));
  const model::ModelConfig shape = model::find_model("gpt2");
  const auto ranks = comm::self_communicator();
  runtime::Engine engine(
      read.config, model::make_model(shape, runtime::model_dtype(read.config), kSeq, "gpt2"), *ranks, {});
  std::vector<int32_t> tokens(kSeq);
  std::iota(tokens.begin(), tokens.end(), 1000);
  const Batch batch = batch_of(tokens, tokens);
  const Rate rate = measure([&] { engine.train_batch([&](int) { return batch; }); }, double(kSeq), 0, 3);
  return {.name = fmt::format("step/gpt2/{}", name_of(type)),
          .unit = "tokens/s",
          .rate = rate,
          .limit = limits.flops(type) / (engine.model().flops_per_sample / double(kSeq)),
          .limited_by = "the arithmetic on registers"};
}

}  // namespace cleave::bench
