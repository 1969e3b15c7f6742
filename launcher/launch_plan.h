// What a launcher will start, as a value: for every host its ranks, their commands and their place in the
// job. It is made before anything is started; --dry_run prints it, one host's part of it travels to that
// host.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "comm/rendezvous/socket.h"
#include "launcher/hosts.h"
#include "launcher/numa.h"

namespace cleave::launcher {

struct RankStart {
  int rank = 0, local_rank = 0;
  int slot = 0;
  std::vector<std::string> command = {};  // argv; the program is looked up in PATH
  bool operator==(const RankStart&) const = default;
};

// Which cores a rank may run on.
struct Binding {
  enum class How { share, none, asked };  // a share where there are enough cores; --bind_cores_to_rank
  How how = How::share;
  std::vector<int> cores = {};  // to share out; empty: all that the launcher may use
  bool operator==(const Binding&) const = default;
};

// What one host starts.
struct NodeStart {
  std::string host = "localhost";
  int node = 0, nodes = 1, world = 1;
  std::string master_addr = comm::loopback();
  int master_port = 0;        // 0: a free one, where all ranks are on this host
  std::string job_id, token;  // what the ranks of a job show each other; the token is a secret
  int attempt = 0;
  std::map<std::string, std::string> environment = {};  // of every rank, besides its place
  bool set_devices = false;                             // CUDA_VISIBLE_DEVICES lists the slots
  Binding binding = {};
  std::string folder = {};      // where ranks run; empty: where the launcher does
  std::string log_folder = {};  // a file a rank for what it says; empty: the launcher's output
  std::vector<RankStart> ranks = {};
  bool operator==(const NodeStart&) const = default;
};

struct LaunchPlan {
  std::vector<NodeStart> nodes;
  std::string why;  // which rule decided, for people
};

// What the ranks run. A script's argument --local_rank=N stands between `before` and `after`.
struct Program {
  std::vector<std::string> before = {}, after = {};
  bool local_rank = false;
};

// A node for each host, ranks in order; the rest of each node is that of `common`.
LaunchPlan make_plan(const Hosts& hosts, const Program& program, const NodeStart& common);

// The variables that say a rank's place, in torch's and DeepSpeed's words and in ours. `port` is the
// rendezvous' where the plan leaves it open.
std::map<std::string, std::string> place_of(const NodeStart& node, const RankStart& rank, int port);

// The cores of a node's index-th rank: an equal share of the binding's, in order. Empty: unbound.
// Error(usage) when they were asked for and are too few, or are not among `usable`.
std::vector<int> cores_of(const NodeStart& node, size_t index, const std::vector<int>& usable);
// "0,3-5": ascending and disjoint; Error(usage) otherwise.
std::vector<int> parse_core_list(const std::string& text);

// Writes the plan as the launchers of the hosts read it, one node or all. Error(usage): a text of another
// kind or version.
std::string encode(const std::vector<NodeStart>& nodes);
std::vector<NodeStart> decode_nodes(std::string_view text);

// A command with its variables for a shell, secrets masked (core/secrets.h). `before`: what stands before it.
std::string shown_command(const std::map<std::string, std::string>& environment, const std::string& before,
                          const std::vector<std::string>& command);
// What --dry_run prints: for each host a comment and a line for each rank that can be pasted into a shell,
// with the cores that it would have of `usable` (empty: not known, as of another host), whose NUMA nodes a
// comment says. Secrets are masked (core/secrets.h).
std::string describe(const LaunchPlan& plan, const std::vector<int>& usable,
                     const std::vector<NumaNode>& numa = {});

}  // namespace cleave::launcher
