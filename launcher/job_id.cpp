#include "launcher/job_id.h"

#include <fmt/format.h>
#include <unistd.h>

#include "comm/secret.h"

namespace cleave {

std::string new_job_id() { return fmt::format("local-{}-{}", getpid(), random_secret().substr(0, 8)); }
std::string new_token() { return random_secret(); }

}  // namespace cleave
