// Summary of a configuration in a few lines for people.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "config_schema/read_config.h"

namespace cleave::config {

struct NamedValue {
  std::string name, value;
};

// Returns "optimizer": "AdamW (file), lr 0.001 (--learning_rate), ..." and "schedule", with the
// origin of each value: the file, an option, the Trainer or a default. Equal origins are stated
// once, at the end. `result` must be ok().
std::vector<NamedValue> update_lines(const ReadResult& result);

// Returns "zero_optimization.stage = 2, ...": every key that differs from its default, except those
// of the batch, optimizer and schedule; empty if there are none.
std::string differences(const ReadResult& result);

// Returns, for example, "8 = 4 samples x 1 micro-batch x 2 data-parallel ranks".
std::string batch_value(const DsConfig& config);

// Returns "bf16.enabled = false (auto, Trainer's default), ...": values from neither the file nor a
// default, except those of the batch, optimizer and schedule; may be empty.
std::string decided(const ReadResult& result);

// Returns a line, with the reason, per key of the file or the Trainer that is not simply honoured.
std::vector<std::string> unusual(const ReadResult& result);

// Returns every honoured key with its effective value, for the comparison of ranks. Excludes output
// paths of a single rank and settings of a host's disks, which may differ.
std::vector<std::pair<std::string, std::string>> compared_values(DsConfig config);

// Effective values, as JSON by key, that decide what a training computes in any layout: batch, optimizer,
// schedule, clipping, precision, average, decay, and frozen parameters. Keys without an effect in
// this configuration are absent. A checkpoint keeps them.
using TrainingValues = std::map<std::string, std::string>;
TrainingValues training_values(DsConfig config);

// One sentence for each key that both have and whose values differ.
std::vector<std::string> differing_values(const TrainingValues& saved, const TrainingValues& now);

}  // namespace cleave::config
