#include "launcher/role.h"

#include "launcher/pod.h"

namespace cleave::launcher {
namespace {

std::optional<comm::RankInfo> node_of_pod(const Variables& v) {
  const std::optional<Pod> pod = v.has("LOCAL_RANK") ? std::nullopt : pod_of(v);
  if (!pod) return {};
  comm::RankInfo info;
  const std::string wanted = v.text("PET_NPROC_PER_NODE");  // a number, or "auto", "gpu", "cpu"
  info.local_size = wanted.empty() || wanted.find_first_not_of("0123456789") != wanted.npos
                        ? 0
                        : v.number("PET_NPROC_PER_NODE");
  const std::string nodes = v.text("PET_NNODES");  // "2", or "1:4" of an elastic job
  const bool fixed = !nodes.empty() && nodes.find(':') == nodes.npos;
  info.nodes = fixed ? v.number("PET_NNODES") : pod->world;
  require(pod->world == info.nodes || (info.local_size > 0 && pod->world == info.nodes * info.local_size),
          Exit::usage,
          "WORLD_SIZE: invalid (got {}, expected PET_NNODES={} or PET_NNODES times PET_NPROC_PER_NODE={})",
          pod->world, info.nodes, wanted);
  info.node_rank = v.number("PET_NODE_RANK", pod->index);
  require(info.node_rank < info.nodes, Exit::usage,
          "RANK, PET_NODE_RANK: pod {} of {} (PET_NNODES) is out of range", info.node_rank, info.nodes);
  info.master_addr = pod->master_addr;
  info.master_port = pod->master_port;
  info.launched_by = pod->set_by;
  info.job_id = v.text("CLEAVE_JOB_ID");
  info.attempt = v.number("CLEAVE_ATTEMPT", 0);
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
