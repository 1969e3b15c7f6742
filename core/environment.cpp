#include "core/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "core/error.h"
#include "core/units.h"

namespace cleave {
namespace {

constexpr auto kVariables = std::to_array<EnvironmentVariable>({
    {"CLEAVE_ISA", "v3 v4", "v3 (AVX2) or v4 (AVX-512)", "for the best that the CPU has"},
    {"CLEAVE_CUBLASLT", "FILE", "the file of libcublasLt.so.13", "to look for cuBLASLt"},
    {"CLEAVE_CUDA_LIBRARIES", "TEXT", "folders with colons between them",
     "for the packages next to this program"},
    {"CLEAVE_CUDNN", "off FILE", "off, or the file of libcudnn.so.9", "to look for cuDNN"},
    {"CLEAVE_WGMMA", "off", "off", "for the attention kernels of Hopper"},
    {"CLEAVE_GPU_EPILOGUES", "off", "off", "for the epilogues of cuBLASLt"},
    {"CLEAVE_CHOICES", "off", "off", "for the file in the user's cache"},
    {"CLEAVE_NCCL", "FILE", "the file of libnccl.so.2", "to look for NCCL"},
    {"CLEAVE_NCCL_REGISTER", "on off", "on or off", "for off"},
    {"CLEAVE_GPU_TRANSPORT", "auto nccl ipc host", "auto, nccl, ipc or host", "for auto"},
    {"CLEAVE_SHARE_GPU", "1", "1", "for one GPU per rank"},
    {"CLEAVE_FLIGHT", "off TEXT", "off, or a folder for flight records", "for the default folder"},
    {"CLEAVE_NOTICE_FILE", "TEXT", "a file that says that this host ends", "for none"},
    {"CLEAVE_SCHEDULED_EVENTS", "off TEXT", "off, or an address that begins with http://",
     "for that of Azure"},
    {"CLEAVE_DEVICE_MEMORY", "BYTES", "bytes, such as 8GiB", "for all device memory"},
    {"CLEAVE_HOST_MEMORY", "BYTES", "bytes, such as 8GiB", "for all host memory"},
    {"CLEAVE_LIBRARY", "FILE", "the file of libcleave_c.so", "for the one of the Python package"},
    // Set by cleave launch for its ranks.
    {"CLEAVE_LAUNCHED", "1", "1", "where another launcher starts the ranks"},
    {"CLEAVE_CORES", "CORES", "numbers of cores, such as 0,1", "for all of them"},
    {"CLEAVE_JOB_ID", "TEXT", "a name of the job", "for a new one"},
    {"CLEAVE_ATTEMPT", "NUMBER", "a number", "for the first"},
    {"CLEAVE_TOKEN", "TEXT", "a word that the job's ranks share", "for none"},
    {"CLEAVE_HTTP_TOKEN", "TEXT", "a word for the page of a run", "for pages on this host only"},
    {"CLEAVE_BOARD", "TEXT", "a process and a descriptor", "where lost ranks are not replaced"},
    {"CLEAVE_MEETING_PORT", "NUMBER", "a port", "where no launcher listens for rank 0"},
    {"CLEAVE_MEETING_FD", "NUMBER", "a descriptor", "where no launcher listens for rank 0"},
    // Set by cleave compare for its script.
    {"CLEAVE_COMPARE", "subject reference", "subject or reference", "for a script that is not compared"},
    // For tests.
    {"CLEAVE_FULL_PRODUCT", "1", "1", "for a sample"},
    {"CLEAVE_KILLS", "NUMBER", "a number", "for a few"},
    {"CLEAVE_TEST_HOST", "TEXT", "a name", "for the host that this is"},
});
constexpr std::string_view kPrefix = "CLEAVE_", kOfTests = "CLEAVE_TEST_";

bool only(std::string_view value, std::string_view characters) {
  return value.find_first_not_of(characters) == std::string_view::npos;
}

bool is_file(const std::string& value) {
  if (value.find('/') == std::string::npos) return value.find(".so") != std::string::npos;
  return access(value.c_str(), R_OK) == 0;
}

bool matches(const EnvironmentVariable& v, std::string_view form, const std::string& value) {
  if (form == "TEXT") return true;
  if (form == "FILE") return is_file(value);
  if (form == "NUMBER") return only(value, "0123456789");
  if (form == "CORES") return only(value, "0123456789,");
  if (form == "BYTES") return parse_bytes(value, v.name) >= 0;
  return value == form;
}

void check(const EnvironmentVariable& v, const std::string& value) {
  bool known = value.empty();
  for (std::string_view rest = v.values; !rest.empty() && !known;) {
    const size_t end = std::min(rest.find(' '), rest.size());
    known = matches(v, rest.substr(0, end), value);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  require(known, Exit::usage, "{}: invalid value (got '{}', expected {}); correct it, or unset it {}", v.name,
          value, v.wanted, v.otherwise);
}

const EnvironmentVariable* find(std::string_view name) {
  const auto at = std::find_if(kVariables.begin(), kVariables.end(),
                               [&](const EnvironmentVariable& v) { return v.name == name; });
  return at == kVariables.end() ? nullptr : &*at;
}

}  // namespace

std::span<const EnvironmentVariable> environment_variables() { return kVariables; }

std::string environment_value(std::string_view name) {
  const EnvironmentVariable* known = find(name);
  CHECK(known || name.starts_with(kOfTests), "{} is not in the table of environment variables", name);
  const char* set = std::getenv(std::string(name).c_str());
  const std::string value = set ? set : "";
  if (known) check(*known, value);
  return value;
}

std::vector<std::string> check_environment(const char* const* environment) {
  std::vector<std::string> unknown;
  for (; *environment; ++environment) {
    const std::string_view entry = *environment;
    const size_t equals = entry.find('=');
    if (!entry.starts_with(kPrefix) || entry.starts_with(kOfTests) || equals == std::string_view::npos)
      continue;
    if (const EnvironmentVariable* known = find(entry.substr(0, equals)))
      check(*known, std::string(entry.substr(equals + 1)));
    else
      unknown.emplace_back(entry.substr(0, equals));
  }
  return unknown;
}

}  // namespace cleave
