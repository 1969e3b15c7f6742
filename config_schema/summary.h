// What a configuration comes to, in a few lines for people.
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

// "optimizer": "AdamW (file), lr 0.001 (--learning_rate), ..." and "schedule", each value with its origin:
// the file, an option, the Trainer or a default. Equal origins are stated once, at the end. `result` must be
// ok().
std::vector<NamedValue> update_lines(const ReadResult& result);

// "zero_optimization.stage = 2, ...": every key that differs from its default, without those of the batch,
// optimizer and schedule; empty if there are none.
std::string differences(const ReadResult& result);

// "8 = 4 samples x 1 micro-batch x 2 data-parallel ranks".
std::string batch_value(const DsConfig& config);

// "bf16.enabled = false (auto, Trainer's default), ...": values that neither the file nor a default states,
// without those of the batch, optimizer and schedule; may be empty.
std::string decided(const ReadResult& result);

// One line per key that the file or the Trainer sets and that is not simply honoured, with the reason.
std::vector<std::string> unusual(const ReadResult& result);

// Every honoured key with its effective value, for ranks to compare: all that a resolved configuration must
// have alike on all ranks. Excludes paths of files that one rank writes and the settings of a host's own
// disks.
std::vector<std::pair<std::string, std::string>> compared_values(DsConfig config);

// Effective values, as JSON by key, that decide what a training computes in any layout: batch, optimizer,
// schedule, clipping, precision, average, decay, frozen parameters and adapters. Keys without an effect in
// this configuration are absent. A checkpoint keeps them.
using TrainingValues = std::map<std::string, std::string>;
TrainingValues training_values(DsConfig config);

// One sentence for each key that both have and whose values differ.
std::vector<std::string> differing_values(const TrainingValues& saved, const TrainingValues& now);

}  // namespace cleave::config
