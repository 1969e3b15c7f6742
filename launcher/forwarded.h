// Variables that a job forwards to other hosts.
#pragma once
#include <string>
#include <string_view>

#include "launcher/discovery.h"

namespace cleave::launcher {

// DeepSpeed's: names that begin with MLFLOW, PYTHON, MV2, UCX or NCCL, with `folder` prepended to PYTHONPATH;
// and CLEAVE_* except those that a launcher sets. Not NCCL_IB_HCA and UCX_NET_DEVICES if AISC_JOB_NAME
// indicates that every node sets them.
Environment forwarded_variables(const Environment& env, const std::string& folder);

// Parses lines NAME=VALUE. Strips blanks around both and one pair of quotes around the value; expands
// nothing. Skips blank lines and comments (#). Throws Error(usage) with file and line for anything else.
Environment parse_environment_file(std::string_view text, const std::string& file);

// Variables of .deepspeed_env (or the name in DS_ENV_FILE) in the home folder and then in `folder`; later
// ones override.
Environment environment_of_files(const Environment& env, const std::string& folder);

}  // namespace cleave::launcher
