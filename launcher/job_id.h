// Generates names of jobs.
#pragma once
#include <string>

namespace cleave::launcher {

// Random values: an id that distinguishes jobs, and a token that ranks prove to each other.
std::string new_job_id();
std::string new_token();

}  // namespace cleave::launcher
