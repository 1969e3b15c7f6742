#include "launcher/role.h"

#include <charconv>

#include "launcher/variables.h"

namespace cleave::launcher {
namespace {

// Pods of Kubeflow's PyTorchJob etc.: RANK counts pods, WORLD_SIZE pods or ranks.
std::optional<comm::RankInfo> node_of_pod(const Variables& v) {
  if (v.has("LOCAL_RANK") || !v.missing({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}).empty())
    return {};
  comm::RankInfo info;
  const std::string wanted = v.text("PET_NPROC_PER_NODE");  // a number, or "auto", "gpu", "cpu"
  info.local_size = wanted.empty() || wanted.find_first_not_of("0123456789") != wanted.npos
                        ? 0
                        : v.number("PET_NPROC_PER_NODE");
  const std::string nodes = v.text("PET_NNODES");  // "2", or "1:4" of an elastic job
  const bool fixed = !nodes.empty() && nodes.find(':') == nodes.npos;
  const int world = v.number("WORLD_SIZE");
  info.nodes = fixed ? v.number("PET_NNODES") : world;
  require(world == info.nodes || (info.local_size > 0 && world == info.nodes * info.local_size), Exit::usage,
          "WORLD_SIZE: invalid (got {}, expected PET_NNODES={} or PET_NNODES times PET_NPROC_PER_NODE={})",
          world, info.nodes, wanted);
  info.node_rank = v.number("PET_NODE_RANK", v.number("RANK"));
  require(info.node_rank < info.nodes, Exit::usage,
          "RANK, PET_NODE_RANK: pod {} of {} (PET_NNODES) is out of range", info.node_rank, info.nodes);
  info.master_addr = v.text("MASTER_ADDR");
  info.master_port = v.number("MASTER_PORT");
  info.launched_by = v.has("PET_NNODES") ? "Kubeflow PyTorchJob (RANK, WORLD_SIZE, MASTER_ADDR, PET_*)"
                                         : "one process per pod (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)";
  return info;
}

}  // namespace

LauncherRole role_of_launcher(const Environment& env) {
  const Variables v(env);
  if (auto pod = node_of_pod(v)) return {LauncherRole::Kind::node, *pod};
  LauncherRole role;
  role.info = discover_ranks(env).info;
  comm::RankInfo& info = role.info;
  if (info.local_size > 1 || v.has("CLEAVE_LAUNCHED")) {
    role.kind = LauncherRole::Kind::adopt;
  } else if (info.world > 1) {
    role.kind = LauncherRole::Kind::node;
    info.node_rank = info.rank;
    info.nodes = info.world;
    info.local_size = 0;
    // The agent that listens there serves other ranks.
    if (info.port_is_taken) info.master_port += 1 + info.attempt % 64;
  }
  return role;
}

Environment adopted_environment(const Environment& env, const comm::RankInfo& info) {
  const Variables v(env);
  if (v.missing({"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}).empty()) return {};
  Environment more = {{"RANK", std::to_string(info.rank)},
                      {"WORLD_SIZE", std::to_string(info.world)},
                      {"LOCAL_RANK", std::to_string(info.local_rank)},
                      {"LOCAL_WORLD_SIZE", std::to_string(info.local_size)},
                      {"LOCAL_SIZE", std::to_string(info.local_size)},
                      {"NODE_RANK", std::to_string(info.node_rank)},
                      {"CROSS_RANK", std::to_string(info.node_rank)},
                      {"CROSS_SIZE", std::to_string(info.nodes)},
                      {"MASTER_ADDR", info.master_addr},
                      {"MASTER_PORT", std::to_string(info.master_port)}};
  if (!info.job_id.empty()) more["CLEAVE_JOB_ID"] = info.job_id;
  if (info.attempt) more["CLEAVE_ATTEMPT"] = std::to_string(info.attempt);
  return more;
}

}  // namespace cleave::launcher
