#include "launcher/job_id.h"

#include <fmt/format.h>
#include <unistd.h>

#include "comm/rendezvous/secret.h"

namespace cleave::launcher {

std::string new_job_id() { return fmt::format("local-{}-{}", getpid(), comm::random_secret().substr(0, 8)); }
std::string new_token() { return comm::random_secret(); }

}  // namespace cleave::launcher
