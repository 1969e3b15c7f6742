// The hosts of a job and the slots that ranks get on them, from a hostfile and what the command line takes of
// it, in DeepSpeed's words.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cleave::launcher {

struct Host {
  std::string name;
  std::vector<int> slots;  // one rank each; on a host with GPUs their numbers
  bool operator==(const Host&) const = default;
};

using Hosts = std::vector<Host>;  // in the order of ranks

// Letters, digits, '.', '-' and '_', beginning with a letter or digit: nothing that a shell, an option parser
// or a list could take for something else.
bool is_host_name(std::string_view name);

// "NAME slots=N" a line; NAME may hold ranges ("worker-[01-04]"); blank lines and comments (#) are passed
// over, and so are words after the number. Error(usage) with file and line: another form, no slots, a host
// that is there twice, no host at all.
Hosts parse_hostfile(std::string_view text, const std::string& file);
Hosts read_hostfile(const std::string& file);

struct HostFilter {
  std::string include = {}, exclude = {};  // "host1@host2:0,2"
  int num_nodes = -1, num_gpus = -1;       // the first so many; -1: all
};

// What is left, in the hosts' order, slots ascending. Error(usage): a host or slot that is not there, include
// and exclude, either of them with a number, more than there is, nothing left.
Hosts select_hosts(const Hosts& hosts, const HostFilter& filter);

// How many slots a host needs that has every slot which the filter names; 0: it names none. Error(usage).
int slots_named(const HostFilter& filter);

int ranks_of(const Hosts& hosts);

// Decodes {"host": [slots]} as JSON in URL-safe base64, which DeepSpeed's launchers pass to each other.
Hosts decode_world_info(const std::string& text);  // Error(usage) for anything else

}  // namespace cleave::launcher
