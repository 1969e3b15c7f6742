#include <fmt/format.h>

#include <numeric>

#include "comm/communicator.h"
#include "config_schema/read_config.h"
#include "core/error.h"
#include "model/presets.h"
#include "plan/bench/limits.h"
#include "plan/bench/machine_rows.h"
#include "runtime/engine.h"

namespace cleave::bench {

StepJob step_job(DType type) {
  const std::string text = fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "bf16": {{"enabled": {}}},
           "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4}}}}}})",
      type == DType::bf16);
  const config::ReadResult read = config::read_ds_config(text, "cleave bench");
  CHECK(read.ok(), "the step's configuration: {}", config::format(read.problems));
  return {.config = read.config, .model = model::find_model("gpt2"), .seq = 1024};
}

std::string step_row_name(DType type) { return fmt::format("step/gpt2/{}", name_of(type)); }

Subject step_row(DType type) {
  return {step_row_name(type), [type] {
            const StepJob job = step_job(type);
            const auto ranks = comm::self_communicator();
            runtime::Engine engine(job.config, model::make_model(job.model, type, job.seq, "gpt2"), *ranks,
                                   {});
            std::vector<int32_t> tokens(size_t(job.seq));
            std::iota(tokens.begin(), tokens.end(), 1000);
            const Batch batch = batch_of(tokens, tokens);
            const double seconds = fastest([&] { engine.train_batch([&](int) { return batch; }); }, 0);
            const double flops = engine.flops_per_sample() / double(job.seq);
            return Visit{.rate = double(job.seq) / seconds,
                         .unit = "tokens/s",
                         .bounds = flops_bounds(type, "the arithmetic on registers", 1e9 / flops)};
          }};
}

}  // namespace cleave::bench
