// Launch plan as a value: the ranks of every host, their commands and their places in the job. It is complete
// before anything starts. --dry_run prints it, and each host receives its part.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "comm/rendezvous/socket.h"
#include "launcher/hosts.h"
#include "launcher/topology.h"

namespace cleave::launcher {

struct RankStart {
  int rank = 0, local_rank = 0;
  int slot = 0;
  std::vector<std::string> command = {};  // argv; the program is looked up in PATH
  bool operator==(const RankStart&) const = default;
};

// Cores that a rank may use.
struct Binding {
  enum class How { share, none, asked };  // share: if there are enough cores; asked: --bind_cores_to_rank
  How how = How::share;
  std::vector<int> cores = {};  // cores to divide; empty: all that the launcher may use
  bool operator==(const Binding&) const = default;
};

// One host's part of a plan.
struct NodeStart {
  std::string host = "localhost";
  int node = 0, nodes = 1, world = 1;
  std::string master_addr = comm::loopback();
  int master_port = 0;        // 0: a free port, if all ranks are on this host
  std::string job_id, token;  // proof of membership between ranks; the token is secret
  int attempt = 0;
  std::map<std::string, std::string> environment = {};  // of every rank, in addition to its place
  bool set_devices = false;                             // sets CUDA_VISIBLE_DEVICES to the slots
  Binding binding = {};
  std::string folder = {};      // working folder of ranks; empty: that of the launcher
  std::string log_folder = {};  // one file of output per rank; empty: the launcher's output
  std::vector<RankStart> ranks = {};
  bool operator==(const NodeStart&) const = default;
};

struct LaunchPlan {
  std::vector<NodeStart> nodes;
  std::string why;  // the deciding rule, for the user
};

// Program of the ranks. A script's argument --local_rank=N goes between `before` and `after`.
struct Program {
  std::vector<std::string> before = {}, after = {};
  bool local_rank = false;
};

// One node per host, ranks in order; other fields of each node are copied from `common`.
LaunchPlan make_plan(const Hosts& hosts, const Program& program, const NodeStart& common);

// Variables with a rank's place, for torch, DeepSpeed and Cleave. `port` is the rendezvous port if the plan
// does not set it.
std::map<std::string, std::string> place_of(const NodeStart& node, const RankStart& rank, int port);

// A machine that starts ranks, for their places on it.
struct Machine {
  std::vector<int> usable = {};  // cores that the launcher may use; empty: unknown
  Topology topology = {};
  std::vector<int> gpu_nodes = {};  // gpu_nodes_of(); shorter than the ranks: no GPUs
  bool binds_memory = false;        // false: ranks keep the launcher's memory policy
};

// Places of a node's ranks: equal shares of the binding's cores in their order, or else share_cores(). Throws
// Error(usage) if requested cores are too few or not usable.
std::vector<RankPlace> places_of(const NodeStart& node, const Machine& machine);
// "0,3-5": ascending and disjoint. Otherwise throws Error(usage).
std::vector<int> parse_core_list(const std::string& text);

// Text form of one or all nodes, which launchers on other hosts read. decode_nodes() throws Error(usage) for
// another kind of text or another version.
std::string encode(const std::vector<NodeStart>& nodes);
std::vector<NodeStart> decode_nodes(std::string_view text);

// Shell form of a command with its variables and the prefix `before`; secrets are masked (core/secrets.h).
std::string shown_command(const std::map<std::string, std::string>& environment, const std::string& before,
                          const std::vector<std::string>& command);
// Output of --dry_run: per host a comment, and per rank a line that can be pasted into a shell, with its
// cores on `machine` (all unknown, as for another host: those of the binding); a comment names their NUMA
// nodes. Secrets are masked (core/secrets.h).
std::string describe(const LaunchPlan& plan, const Machine& machine);

}  // namespace cleave::launcher
