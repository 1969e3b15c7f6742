#include "launcher/launch_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/secrets.h"
#include "core/version.h"
#include "launcher/shell_words.h"

namespace cleave::launcher {
namespace {

using nlohmann::json;

std::vector<int> slots_of(const NodeStart& node) {
  std::vector<int> slots;
  for (const RankStart& r : node.ranks) slots.push_back(r.slot);
  return slots;
}

json as_json(const NodeStart& n) {
  json ranks = json::array();
  for (const RankStart& r : n.ranks)
    ranks.push_back(
        {{"rank", r.rank}, {"local_rank", r.local_rank}, {"slot", r.slot}, {"command", r.command}});
  return {{"host", n.host},
          {"node", n.node},
          {"nodes", n.nodes},
          {"world", n.world},
          {"master_addr", n.master_addr},
          {"master_port", n.master_port},
          {"job_id", n.job_id},
          {"token", n.token},
          {"attempt", n.attempt},
          {"environment", n.environment},
          {"set_devices", n.set_devices},
          {"binding", int(n.binding.how)},
          {"cores", n.binding.cores},
          {"folder", n.folder},
          {"log_folder", n.log_folder},
          {"ranks", ranks}};
}

NodeStart read_node(const json& j) {
  NodeStart n;
  j.at("host").get_to(n.host), j.at("node").get_to(n.node), j.at("nodes").get_to(n.nodes);
  j.at("world").get_to(n.world), j.at("master_addr").get_to(n.master_addr);
  j.at("master_port").get_to(n.master_port), j.at("job_id").get_to(n.job_id), j.at("token").get_to(n.token);
  j.at("attempt").get_to(n.attempt), j.at("environment").get_to(n.environment);
  j.at("set_devices").get_to(n.set_devices), j.at("cores").get_to(n.binding.cores);
  n.binding.how = Binding::How(j.at("binding").get<int>());
  j.at("folder").get_to(n.folder), j.at("log_folder").get_to(n.log_folder);
  for (const json& r : j.at("ranks")) {
    RankStart start{r.at("rank"), r.at("local_rank"), r.at("slot"), {}};
    r.at("command").get_to(start.command);
    n.ranks.push_back(std::move(start));
  }
  return n;
}

// Equal shares of the cores that a user listed, in their order.
std::vector<RankPlace> places_in_list(const NodeStart& node, const Machine& machine) {
  const std::vector<int>& all = node.binding.cores;
  for (const int core : all)
    require(machine.usable.empty() || std::count(machine.usable.begin(), machine.usable.end(), core) > 0,
            Exit::usage, "--bind_core_list: core {} is not available on {} (expected one of {})", core,
            node.host, fmt::join(machine.usable, ","));
  const size_t share = all.size() / node.ranks.size();
  std::vector<RankPlace> places;
  for (size_t i = 0; i < node.ranks.size(); ++i) {
    const auto first = all.begin() + long(i * share);
    RankPlace place{{first, first + long(share)}};
    place.memory = memory_node(machine.topology, place.cores);
    places.push_back(std::move(place));
  }
  return places;
}

}  // namespace

LaunchPlan make_plan(const Hosts& hosts, const Program& program, const NodeStart& common) {
  LaunchPlan plan;
  int rank = 0;
  for (const Host& host : hosts) {
    NodeStart node = common;
    node.host = host.name;
    node.node = int(plan.nodes.size());
    node.nodes = int(hosts.size());
    node.world = ranks_of(hosts);
    for (size_t i = 0; i < host.slots.size(); ++i) {
      RankStart r{rank++, int(i), host.slots[i], program.before};
      if (program.local_rank) r.command.push_back(fmt::format("--local_rank={}", i));
      r.command.insert(r.command.end(), program.after.begin(), program.after.end());
      node.ranks.push_back(std::move(r));
    }
    plan.nodes.push_back(std::move(node));
  }
  return plan;
}

std::map<std::string, std::string> place_of(const NodeStart& node, const RankStart& rank, int port) {
  std::map<std::string, std::string> env = node.environment;
  const auto set = [&](const char* name, int value) { env[name] = std::to_string(value); };
  set("RANK", rank.rank), set("LOCAL_RANK", rank.local_rank), set("WORLD_SIZE", node.world);
  set("LOCAL_WORLD_SIZE", int(node.ranks.size())), set("LOCAL_SIZE", int(node.ranks.size()));
  set("NODE_RANK", node.node), set("CROSS_RANK", node.node), set("CROSS_SIZE", node.nodes);
  set("MASTER_PORT", port), set("CLEAVE_LAUNCHED", 1), set("CLEAVE_ATTEMPT", node.attempt);
  env["MASTER_ADDR"] = node.master_addr;
  if (!node.job_id.empty()) env["CLEAVE_JOB_ID"] = node.job_id;
  if (!node.token.empty()) env["CLEAVE_TOKEN"] = node.token;
  if (node.set_devices) env["CUDA_VISIBLE_DEVICES"] = fmt::format("{}", fmt::join(slots_of(node), ","));
  return env;
}

std::vector<RankPlace> places_of(const NodeStart& node, const Machine& machine) {
  const size_t ranks = node.ranks.size();
  const bool asked = node.binding.how == Binding::How::asked;
  if (node.binding.how == Binding::How::none) return std::vector<RankPlace>(ranks);
  const std::vector<int>& all = node.binding.cores.empty() ? machine.usable : node.binding.cores;
  require(all.size() >= ranks || !asked, Exit::usage,
          "--bind_cores_to_rank: {} has too few cores (got {} cores for {} ranks, expected one each)",
          node.host, all.size(), ranks);
  std::vector<RankPlace> places;
  if (node.binding.cores.empty()) {
    std::vector<int> nodes = machine.gpu_nodes;
    nodes.resize(ranks, -1);
    places = share_cores(machine.topology, all, nodes);
  } else {
    places = places_in_list(node, machine);
  }
  for (RankPlace& place : places)
    if (!machine.binds_memory) place.memory = -1;
  return places;
}

std::vector<int> parse_core_list(const std::string& text) {
  std::vector<int> cores;
  const char *at = text.data(), *end = at + text.size();
  const auto read = [&] {
    int n = -1;
    const auto [next, error] = std::from_chars(at, end, n);
    const bool good = error == std::errc() && n >= 0 && n < 65536;
    require(good, Exit::usage,
            "--bind_core_list: malformed (got {}, expected core numbers and ranges such as 0,2-5)", text);
    at = next;
    return n;
  };
  do {
    if (!cores.empty()) ++at;
    const int first = read(), last = at < end && *at == '-' ? (++at, read()) : first;
    require(last >= first && (cores.empty() || first > cores.back()) && (at == end || *at == ','),
            Exit::usage,
            "--bind_core_list: cores must ascend without duplicates (got {}, expected a form such as 0,2-5)",
            text);
    for (int core = first; core <= last; ++core) cores.push_back(core);
  } while (at < end);
  return cores;
}

std::string encode(const std::vector<NodeStart>& nodes) try {
  json list = json::array();
  for (const NodeStart& n : nodes) list.push_back(as_json(n));
  return json{{"version", build::version}, {"nodes", list}}.dump(-1, ' ', true);
} catch (const json::exception&) {
  fail(Exit::usage,
       "launch: an argument or a variable of the job is not UTF-8, which other hosts cannot receive; rename "
       "it");
}

std::vector<NodeStart> decode_nodes(std::string_view text) try {
  const json j = json::parse(text);
  const std::string version = j.at("version");
  require(version == build::version, Exit::usage,
          "version of cleave: the hosts differ (got {} on the starting host, {} here); install the same "
          "version on all hosts",
          version, build::version);
  std::vector<NodeStart> nodes;
  for (const json& n : j.at("nodes")) nodes.push_back(read_node(n));
  return nodes;
} catch (const json::exception&) {
  fail(Exit::usage,
       "--node: no part of a job arrived; this option is for internal use by a launcher on another host");
}

std::string shown_command(const std::map<std::string, std::string>& environment, const std::string& before,
                          const std::vector<std::string>& command) {
  std::string out = "env ";
  for (const auto& [name, value] : environment)
    out += name + "=" + (is_secret(name) ? "masked" : shell_quoted(without_secrets(value))) + " ";
  return out + before + shell_quoted(without_secrets(command));
}

std::string describe(const LaunchPlan& plan, const Machine& machine) {
  std::string out;
  for (const NodeStart& n : plan.nodes) {
    const std::vector<int> slots = slots_of(n);
    const bool bound = n.binding.how != Binding::How::none;
    const bool known = !machine.usable.empty() || !n.binding.cores.empty();
    out += fmt::format("# {}: rank{} of {}, slot{} {}{}\n", n.host,
                       n.ranks.size() == 1
                           ? fmt::format(" {}", n.ranks[0].rank)
                           : fmt::format("s {} to {}", n.ranks.front().rank, n.ranks.back().rank),
                       n.world, slots.size() == 1 ? "" : "s", fmt::join(slots, ","),
                       bound && !known ? "; each rank has a share of the host's cores" : "");
    const std::vector<RankPlace> places =
        known ? places_of(n, machine) : std::vector<RankPlace>(n.ranks.size());
    for (size_t i = 0; i < n.ranks.size(); ++i) {
      const RankPlace& place = places[i];
      if (!place.cores.empty())
        out += fmt::format("# rank {}: cores {}\n", n.ranks[i].rank, describe_place(place, machine.topology));
      if (!n.folder.empty()) out += fmt::format("cd {} && ", shell_quoted(n.folder));
      const std::string pinned =
          place.cores.empty() ? "" : fmt::format("taskset -c {} ", fmt::join(place.cores, ","));
      out += shown_command(place_of(n, n.ranks[i], n.master_port), pinned, n.ranks[i].command) + "\n";
    }
  }
  return out;
}

}  // namespace cleave::launcher
