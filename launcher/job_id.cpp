#include "launcher/job_id.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/error.h"

namespace cleave {
namespace {

std::string random_hex() {
  uint64_t number[2] = {};
  require(getrandom(number, sizeof(number), 0) == ssize_t(sizeof(number)), Exit::internal,
          "getrandom failed");
  return fmt::format("{:016x}{:016x}", number[0], number[1]);
}

}  // namespace

std::string new_job_id() { return fmt::format("local-{}-{}", getpid(), random_hex().substr(0, 8)); }
std::string new_token() { return random_hex(); }

}  // namespace cleave
