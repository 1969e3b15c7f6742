// Randomly damaged configurations: each must give a result, never a crash or a hang.
#include <gtest/gtest.h>

#include "config_schema/read_config.h"
#include "core/philox.h"

namespace cleave::config {
namespace {

const char* kFiles[] = {
    R"({"train_batch_size": 64, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999]}},
        "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": [0.2]}},
        "fp16": {"enabled": true, "loss_scale": 0}, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}})",
    R"({"train_batch_size": "auto", "bfloat16": {"enabled": "auto"}, "steps_per_print": Infinity, // c
        "tensor_parallel": {"partition_config": {"layer_specs": [{"patterns": ["\u00e9.*"], "shape": [1, [2, 3]]}]}},
        "compression_training": {"weight_quantization": {"different_groups": {"g": {"params": {"start_bits": 8}}}}},})",
};

std::string damaged(std::string text, const Philox& random, uint64_t& at) {
  const std::string_view pieces[] = {"{",        "}",
                                     "[",        "]",
                                     "\"",       ",",
                                     ":",        "auto",
                                     "\"auto\"", "null",
                                     "1e999",    "-1",
                                     "\\u",      "/*",
                                     "true",     "\xFF",
                                     "\n",       "stage",
                                     "<",        "9223372036854775807",
                                     "0.5",      "\"enabled\": true,"};
  const auto draw = [&](size_t below) { return size_t(random.word(at++)) % below; };
  for (size_t edits = 1 + draw(6); edits > 0 && !text.empty(); --edits) {
    const size_t where = draw(text.size()), length = draw(40);
    switch (draw(4)) {
      case 0:
        text.erase(where, 1 + length / 3);
        break;
      case 1:
        text.insert(where, pieces[draw(std::size(pieces))]);
        break;
      case 2:
        text[where] = char(draw(256));
        break;
      case 3:
        text.insert(where, text.substr(draw(text.size()), length));
        break;
    }
  }
  return text;
}

TEST(MutatedConfig, IsReadOrAnErrorButNeverCrashes) {
  const Philox random{.seed = 20260831, .stream = 1};
  uint64_t at = 0;
  int accepted = 0;
  for (int i = 0; i < 600; ++i) {
    const std::string text = damaged(kFiles[i % 2], random, at);
    const ReadResult r = read_ds_config(text, "f", {});
    accepted += r.ok();
    for (const Problem& p : r.problems) EXPECT_FALSE(p.message.empty());
    (void)format(r.notes);
  }
  EXPECT_LT(accepted, 600);
}

}  // namespace
}  // namespace cleave::config
