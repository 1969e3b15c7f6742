#include "app/start/serve_host.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "config_schema/base64.h"
#include "core/error.h"
#include "launcher/discovery.h"
#include "launcher/last_of_rank.h"
#include "launcher/placed_rank.h"
#include "launcher/serve_node.h"
#include "launcher/variables.h"

namespace cleave::app {
namespace {

using namespace std::chrono_literals;

constexpr size_t kLongestJob = 64 << 20;

// Reads exactly this number of bytes; later bytes stay unread.
std::string read_bytes(size_t bytes) {
  std::string text(bytes, 0);
  for (size_t at = 0; at < bytes;) {
    const ssize_t n = read(STDIN_FILENO, text.data() + at, bytes - at);
    if (n < 0 && errno == EINTR) continue;
    require(n > 0, Exit::usage, "--node: the launcher on the first host ended before it sent the job");
    at += size_t(n);
  }
  return text;
}

launcher::NodeStart node_from_input() {
  size_t length = 0;
  for (std::string digit; (digit = read_bytes(1)) != "\n";) {
    require(digit[0] >= '0' && digit[0] <= '9' && length < kLongestJob, Exit::usage,
            "--node: for internal use by a launcher on another host; use cleave launch without it");
    length = length * 10 + size_t(digit[0] - '0');
  }
  const std::vector<launcher::NodeStart> nodes = launcher::decode_nodes(read_bytes(length));
  const launcher::Environment env = launcher::environment_of_process();
  const std::string name = launcher::Variables(env).text("SLURMD_NODENAME");
  for (const launcher::NodeStart& n : nodes)
    if (nodes.size() == 1 || n.host == name) return n;
  fail(Exit::usage,
       "SLURMD_NODENAME: matches no host of the job (got {} parts of a job, and SLURMD_NODENAME='{}')",
       nodes.size(), name);
}

std::vector<launcher::NodeStart> nodes_from_environment() {
  const char* text = std::getenv(launcher::kJobVariable);
  require(text, Exit::usage,
          "the job did not arrive: sshd on this host rejects the variable {} (set AcceptEnv LC_* in "
          "sshd_config); --launcher ssh needs no variable",
          launcher::kJobVariable);
  const std::vector<launcher::NodeStart> nodes = launcher::decode_nodes(config::decode_base64(text));
  unsetenv(launcher::kJobVariable);  // contains the token, which ranks get another way
  return nodes;
}

int serve_rank(const std::vector<launcher::NodeStart>& nodes) {
  const launcher::Environment env = launcher::environment_of_process();
  const int number = launcher::rank_of_mpi(env, nodes.at(0).world);
  for (const launcher::NodeStart& node : nodes)
    for (size_t i = 0; i < node.ranks.size(); ++i) {
      if (node.ranks[i].rank != number) continue;
      const std::vector<launcher::RankPlace> places = launcher::places_of(node, launcher::this_machine(node));
      const launcher::Placed placed = launcher::placed_rank(node, i, node.master_port, places[i]);
      clearenv();
      for (const auto& [name, value] : placed.environment) setenv(name.c_str(), value.c_str(), 1);
      launcher::take_place(placed.place);
      require(node.folder.empty() || chdir(node.folder.c_str()) == 0, Exit::usage, "{}: {}", node.folder,
              std::strerror(errno));
      launcher::end_with_all_children();
      become(node.ranks[i].command);
    }
  fail(Exit::usage, "rank {}: not in the plan of the job", number);
}

}  // namespace

int serve_host(const Arguments& arguments) {
  if (arguments[0] == "--rank") return serve_rank(nodes_from_environment());
  launcher::StayOptions stay{.leave_grace = 3s, .term_grace = 1500ms};
  stay.of_other_host = true;
  stay.control = STDIN_FILENO;  // pdsh sends nothing on it and keeps it open during its life
  if (arguments.size() == 1) {
    stay.heartbeat = true;
    stay.farewell = launcher::Variables(launcher::environment_of_process()).has("SLURM_STEP_ID");
    return launcher::serve_node(node_from_input(), stay);
  }
  const std::vector<launcher::NodeStart> nodes = nodes_from_environment();
  const int n = launcher::Variables({{"--node", arguments[1]}}).number("--node");
  require(size_t(n) < nodes.size(), Exit::usage, "--node {}: the job has {} nodes", n, nodes.size());
  return launcher::serve_node(nodes[size_t(n)], stay);
}

launcher::LaunchResult launch_by_other(const launcher::RemoteCommand& command,
                                       const launcher::StayOptions& stay) {
  launcher::NodeStart node;  // one process that is not a rank; its output has no prefix
  node.environment = command.environment;
  node.binding.how = launcher::Binding::How::none;
  node.ranks = {{0, 0, 0, command.command}};
  launcher::StayOptions plain = stay;
  plain.rank0_inherits_output = true;
  plain.place = false;
  launcher::LaunchResult result = launcher::launch_node(node, plain);
  constexpr std::string_view kRank = "rank 0";
  // It is not a program of ours, so it has not printed a reason.
  if (result.cause >= 0 && result.message.empty()) result.message = launcher::end_of_rank(0, result.exit);
  if (result.message.starts_with(kRank))
    result.message =
        std::filesystem::path(command.command[0]).stem().string() + result.message.substr(kRank.size());
  return result;
}

void become(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  fail(Exit::usage, "{}: cannot be started: {}", command[0], std::strerror(errno));
}

}  // namespace cleave::app
