// The names that launchers give to jobs.
#pragma once
#include <string>

namespace cleave::launcher {

// What tells a job from others, and what its ranks show each other.
std::string new_job_id();
std::string new_token();

}  // namespace cleave::launcher
