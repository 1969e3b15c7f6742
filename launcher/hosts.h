// Hosts of a job and their slots for ranks, from a hostfile and the host options of the command line, in
// DeepSpeed's syntax.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cleave::launcher {

struct Host {
  std::string name;
  std::vector<int> slots;  // one rank each; GPU numbers on a host with GPUs
  bool operator==(const Host&) const = default;
};

using Hosts = std::vector<Host>;  // in the order of ranks

// True for letters, digits, '.', '-' and '_', starting with a letter or digit: safe in shells, option parsers
// and lists.
bool is_host_name(std::string_view name);

// Parses lines "NAME slots=N"; NAME may hold ranges ("worker-[01-04]"). Skips blank lines, comments (#), and
// words after the number. Throws Error(usage) with file and line for other forms, zero slots, duplicate
// hosts, or no hosts.
Hosts parse_hostfile(std::string_view text, const std::string& file);
Hosts read_hostfile(const std::string& file);

struct HostFilter {
  std::string include = {}, exclude = {};  // "host1@host2:0,2"
  int num_nodes = -1, num_gpus = -1;       // use the first N; -1: all
};

// Selected hosts and slots, in the order of `hosts`, slots ascending. Throws Error(usage) for an unknown host
// or slot, a combination of include and exclude, a combination of either with a number, a number above the
// available one, and an empty result.
Hosts select_hosts(const Hosts& hosts, const HostFilter& filter);

// Number of slots that a host needs to have every slot of the filter; 0: the filter names none. Throws
// Error(usage).
int slots_named(const HostFilter& filter);

int ranks_of(const Hosts& hosts);

// Decodes {"host": [slots]} as JSON in URL-safe base64, which DeepSpeed's launchers pass to each other.
Hosts decode_world_info(const std::string& text);  // Error(usage) for anything else

}  // namespace cleave::launcher
