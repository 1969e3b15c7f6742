// What a configuration comes to, in a few lines for people.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "config_schema/read_config.h"

namespace cleave::config {

// "optimizer: AdamW (file), lr 0.001 (--learning_rate), ..." and "schedule: ...": what the weights are
// updated with, and whether the file, an option, the Trainer or a default says so. `result` must be ok().
std::vector<std::string> update_lines(const ReadResult& result);

// "config: zero_optimization.stage = 2, ...": every key that differs from its default, apart from those of
// the batch, optimizer and schedule, which have lines of their own; empty where none does.
std::string differences_line(const ReadResult& result);

// Every honoured key with its effective value, for ranks to compare: all that a resolved configuration must
// have alike on all ranks. Excludes paths of files that one rank writes and the settings of a host's own
// disks.
std::vector<std::pair<std::string, std::string>> compared_values(DsConfig config);

}  // namespace cleave::config
