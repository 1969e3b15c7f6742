// Which variables travel to the other hosts of a job.
#pragma once
#include <string>
#include <string_view>

#include "launcher/discovery.h"

namespace cleave::launcher {

// DeepSpeed's: names that begin with MLFLOW, PYTHON, MV2, UCX or NCCL, with `folder` in front of PYTHONPATH;
// and ours, CLEAVE_*, but for those that a launcher sets itself. Not NCCL_IB_HCA and UCX_NET_DEVICES where
// AISC_JOB_NAME says that every node has its own.
Environment forwarded_variables(const Environment& env, const std::string& folder);

// NAME=VALUE a line, blanks around both and one pair of quotes around a value taken away; nothing is
// expanded. Blank lines and comments (#) are passed over. Error(usage) with file and line for anything else.
Environment parse_environment_file(std::string_view text, const std::string& file);

// Those of .deepspeed_env (or of what DS_ENV_FILE names) in the home and then in `folder`, the later first.
Environment environment_of_files(const Environment& env, const std::string& folder);

}  // namespace cleave::launcher
