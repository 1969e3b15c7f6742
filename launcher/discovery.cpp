#include "launcher/discovery.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "launcher/mpi_launchers.h"
#include "launcher/pod.h"
#include "launcher/slurm.h"

namespace cleave::launcher {
namespace {

nlohmann::json parse_json(const Variables& v, const std::string& name) {
  auto json = nlohmann::json::parse(v.text(name), nullptr, false);
  require(!json.is_discarded(), Exit::usage, "{}: is not JSON: {}", name, v.text(name));
  return json;
}

const std::vector<std::string> kTorchSet = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"};
const std::vector<std::string> kNeeded = {"RANK", "WORLD_SIZE", "MASTER_ADDR",
                                          "MASTER_PORT"};  // launcher/pod.h

void set_master(comm::RankInfo& info, const std::string& master) {
  const size_t colon = master.rfind(':');
  if (colon == std::string::npos || master.find(':') != colon) {  // host name or IPv6 address
    info.master_addr = master;
    return;
  }
  info.master_addr = master.substr(0, colon);
  info.master_port = Variables({{"--master port", master.substr(colon + 1)}}).number("--master port");
}

std::optional<comm::RankInfo> by_torch_set(const Variables& v) {
  if (!v.missing(kTorchSet).empty()) return {};
  comm::RankInfo info;
  info.rank = v.number("RANK");
  info.world = v.number("WORLD_SIZE");
  info.local_rank = v.number("LOCAL_RANK");
  info.master_addr = v.text("MASTER_ADDR");
  info.master_port = v.number("MASTER_PORT");
  info.nodes =
      std::max(1, v.number("GROUP_WORLD_SIZE", v.number("CROSS_SIZE", v.number("AZUREML_NODE_COUNT", 1))));
  info.node_rank = v.number("GROUP_RANK", v.number("CROSS_RANK", v.number("NODE_RANK", 0)));
  info.local_size = std::max(1, info.world / info.nodes);
  // Azure ML has the same number of processes on each node, and accelerate sets LOCAL_WORLD_SIZE to 1 there.
  const bool by_azure = v.has("AZUREML_NODE_COUNT") && !v.has("CLEAVE_LAUNCHED") &&
                        !v.has("GROUP_WORLD_SIZE") && !v.has("CROSS_SIZE");
  const bool says_size = !by_azure && (v.has("LOCAL_WORLD_SIZE") || v.has("LOCAL_SIZE"));
  if (says_size) info.local_size = v.number("LOCAL_WORLD_SIZE", v.number("LOCAL_SIZE", 1));
  if (v.has("CLEAVE_LAUNCHED")) {
    // Cleave's launcher decided: variables of an outer launcher do not count.
    info.launched_by = "cleave launch";
    return info;
  }
  // If all ranks are on this host, they can use an address that other hosts cannot reach.
  if (says_size && info.local_size == info.world) info.master_addr = comm::RankInfo{}.master_addr;
  info.attempt = v.number("TORCHELASTIC_RESTART_COUNT", 0);
  info.port_is_taken = v.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  info.job_id = v.text("TORCHELASTIC_RUN_ID");
  const std::string process = v.text("AZUREML_PROCESS_NAME");
  require(!process.starts_with("rank_") || process == fmt::format("rank_{}", info.rank), Exit::usage,
          "RANK: conflicts with AZUREML_PROCESS_NAME (got RANK={} and AZUREML_PROCESS_NAME={}); unset one of "
          "them",
          info.rank, process);
  const char* who = v.has("TORCHELASTIC_RUN_ID") ? "torchrun"
                    : v.has("AZUREML_RUN_ID")    ? "Azure ML, pytorch distribution"
                    : v.has("CROSS_SIZE")        ? "deepspeed"
                                                 : "the environment";
  info.launched_by = fmt::format("{} ({})", who, fmt::join(kTorchSet, ", "));
  return info;
}

std::optional<comm::RankInfo> by_slurm_step(const Variables& v) {
  // A batch script also has SLURM_PROCID=0; only a step has all three.
  if (!v.missing({"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID"}).empty()) return {};
  comm::RankInfo info;
  info.rank = v.number("SLURM_PROCID");
  info.world = v.number("SLURM_STEP_NUM_TASKS", v.number("SLURM_NTASKS", 1));
  info.local_rank = v.number("SLURM_LOCALID");
  info.node_rank = v.number("SLURM_NODEID", 0);
  info.nodes = v.number("SLURM_STEP_NUM_NODES", v.number("SLURM_NNODES", 1));
  const std::string tasks = v.has("SLURM_STEP_TASKS_PER_NODE") ? v.text("SLURM_STEP_TASKS_PER_NODE")
                                                               : v.text("SLURM_TASKS_PER_NODE");
  const std::vector<int> per_node = expand_tasks_per_node(tasks);
  info.local_size = info.node_rank < int(per_node.size()) ? per_node[size_t(info.node_rank)]
                                                          : std::max(1, info.world / std::max(1, info.nodes));
  info.job_id = v.text("SLURM_JOB_ID") + "." + v.text("SLURM_STEP_ID");
  info.attempt = v.number("SLURM_RESTART_COUNT", 0);
  info.launched_by = "SLURM, srun (SLURM_PROCID, SLURM_STEP_ID)";
  info.master_port = v.number("MASTER_PORT", port_from(info.job_id));
  const std::string list =
      v.has("SLURM_STEP_NODELIST") ? v.text("SLURM_STEP_NODELIST") : v.text("SLURM_JOB_NODELIST");
  if (v.has("MASTER_ADDR"))
    info.master_addr = v.text("MASTER_ADDR");
  else if (info.local_size < info.world && !list.empty())
    info.master_addr = expand_node_list(list).front();
  else
    require(info.local_size == info.world, Exit::usage,
            "SLURM_STEP_NODELIST: missing, so the host of rank 0 is unknown (SLURM started rank {} of {}); "
            "start the ranks with srun",
            info.rank, info.world);
  return info;
}

comm::RankInfo read_tf_config(const Variables& v) {
  const auto config = parse_json(v, "TF_CONFIG");
  const auto task = config.value("task", nlohmann::json::object());
  const std::string type = task.value("type", "");
  require(
      type == "chief" || type == "worker", Exit::usage,
      "TF_CONFIG: Cleave supports workers only (got a process of type '{}'); set parameter_server_count to 0",
      type);
  const auto cluster = config.value("cluster", nlohmann::json::object());
  const auto chiefs = cluster.value("chief", std::vector<std::string>());
  std::vector<std::string> hosts = chiefs;
  for (const std::string& w : cluster.value("worker", std::vector<std::string>())) hosts.push_back(w);
  require(!hosts.empty(), Exit::usage, "TF_CONFIG: contains no worker: {}", v.text("TF_CONFIG"));
  comm::RankInfo info;
  info.rank = info.node_rank = task.value("index", 0) + (type == "worker" ? int(chiefs.size()) : 0);
  info.world = info.nodes = int(hosts.size());
  info.master_addr = hosts[0].substr(0, hosts[0].find(':'));
  info.master_port = v.number("MASTER_PORT", kAzurePort);
  info.job_id = v.text("AZUREML_RUN_ID");
  info.launched_by = "a TensorFlow launcher (TF_CONFIG)";
  return info;
}

std::optional<comm::RankInfo> by_tf_config(const Variables& v) {
  if (!v.has("TF_CONFIG")) return {};
  try {
    return read_tf_config(v);
  } catch (const nlohmann::json::exception&) {
    fail(Exit::usage,
         "TF_CONFIG: malformed (expected {{cluster: {{worker: [...]}}, task: {{type, index}}}}): {}",
         v.text("TF_CONFIG"));
  }
}

std::optional<comm::RankInfo> by_pod(const Variables& v) {
  const std::optional<Pod> pod = pod_of(v);
  if (!pod) return {};
  const std::string wanted = v.text("PET_NPROC_PER_NODE");  // a number, or "auto", "gpu", "cpu"
  const bool counts = wanted.find_first_not_of("0123456789") == wanted.npos;
  const int per_pod = counts ? v.number("PET_NPROC_PER_NODE", 1) : 1;
  require(
      per_pod <= 1, Exit::usage,
      "PET_NPROC_PER_NODE: several ranks per pod (got PET_NPROC_PER_NODE={}, pod {}); start the program with "
      "deepspeed or torchrun --no-python, which start them, or set PET_NPROC_PER_NODE to 1",
      per_pod, pod->index);
  comm::RankInfo info;
  info.rank = info.node_rank = pod->index;
  info.world = info.nodes = pod->world;
  info.master_addr = pod->master_addr;
  info.master_port = pod->master_port;
  info.launched_by = pod->set_by;
  return info;
}

// SageMaker without a distribution: the same program once per host.
std::optional<comm::RankInfo> by_sagemaker(const Variables& v) {
  if (!v.has("SM_HOSTS")) return {};
  const auto json = parse_json(v, "SM_HOSTS");
  require(
      json.is_array() && std::all_of(json.begin(), json.end(), [](const auto& h) { return h.is_string(); }),
      Exit::usage, "SM_HOSTS: is not a list of hosts (got {})", v.text("SM_HOSTS"));
  const auto hosts = json.get<std::vector<std::string>>();
  if (hosts.size() < 2) return {};
  const auto here = std::find(hosts.begin(), hosts.end(), v.text("SM_CURRENT_HOST"));
  require(here != hosts.end(), Exit::usage,
          "SM_CURRENT_HOST: is not in SM_HOSTS (got SM_HOSTS={} and SM_CURRENT_HOST='{}')",
          v.text("SM_HOSTS"), v.text("SM_CURRENT_HOST"));
  comm::RankInfo info;
  info.rank = info.node_rank = int(here - hosts.begin());
  info.world = info.nodes = int(hosts.size());
  info.master_addr = hosts[0];
  info.master_port = v.number("MASTER_PORT", kDefaultPort);
  info.launched_by = "SageMaker, once on each host (SM_HOSTS, SM_CURRENT_HOST)";
  return info;
}

// Rejects signs of several nodes if nothing identifies this one.
void refuse_lone_sign(const Variables& v, const std::vector<std::string>& missing) {
  for (const char* sign : {"AZUREML_NODE_COUNT", "PET_NNODES"})
    require(v.text(sign).find_first_not_of("0123456789") != std::string::npos || v.number(sign, 1) < 2,
            Exit::usage,
            "{}={}: this process is one of several nodes, but {} are missing; set them, or use an MPI "
            "launcher or TF_CONFIG",
            sign, v.text(sign), fmt::join(missing, ", "));
}

constexpr Rule kRules[] = {by_torch_set,  by_open_mpi,  by_hydra, by_mvapich,
                           by_slurm_step, by_tf_config, by_pod,   by_sagemaker};

comm::RankInfo by_command_line(const Variables& v, const RankOverrides& o) {
  require(o.rank && o.world, Exit::usage, "--rank, --world-size: --{} is missing; give both",
          o.rank ? "world-size" : "rank");
  comm::RankInfo info;
  info.rank = *o.rank;
  info.world = *o.world;
  info.local_rank = 0;
  info.master_port = v.number("MASTER_PORT", kDefaultPort);
  if (v.has("MASTER_ADDR")) info.master_addr = v.text("MASTER_ADDR");
  if (o.master) set_master(info, *o.master);
  info.launched_by = "the command line (--rank, --world-size, --master)";
  return info;
}

void check(const comm::RankInfo& info) {
  require(info.world >= 1 && info.rank < info.world, Exit::usage,
          "{}: rank {} is out of range (the job has {} ranks)", info.launched_by, info.rank, info.world);
  require(
      info.local_size >= 1 && info.local_rank < std::max(info.local_size, 1) && info.local_size <= info.world,
      Exit::usage, "{}: local rank {} of {} on this host is impossible in a job of {} ranks",
      info.launched_by, info.local_rank, info.local_size, info.world);
  require(info.master_port >= 1 && info.master_port <= 65535, Exit::usage, "{}: port {} is out of range",
          info.launched_by, info.master_port);
}

void azure_attempt(const Variables& v, comm::RankInfo& info) {
  if (v.has("CLEAVE_LAUNCHED") || !v.has("AZUREML_RUN_ID")) return;
  if (info.job_id.empty()) info.job_id = v.text("AZUREML_RUN_ID");
  const auto context = nlohmann::json::parse(v.text("AZUREML_CR_COMPUTE_CONTEXT"), nullptr, false);
  if (context.is_object() && context.contains("run_attempt_count") &&
      context["run_attempt_count"].is_number_integer())
    info.attempt = context["run_attempt_count"].get<int>();
}

}  // namespace

Environment environment_of_process() {
  Environment env;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) env[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return env;
}

Discovery discover_ranks(const Environment& env, const RankOverrides& overrides) {
  const Variables v(env);
  Discovery found;
  std::optional<comm::RankInfo> info;
  if (overrides.rank || overrides.world) info = by_command_line(v, overrides);
  for (Rule rule : kRules)
    if (!info) info = rule(v);
  if (!info) {
    const auto missing = v.missing(kNeeded);
    require(!v.has("RANK") && !v.has("WORLD_SIZE") && !v.has("LOCAL_RANK"), Exit::usage,
            "{}: {} {} missing; set all of them, and LOCAL_RANK if a host has several ranks, or none for a "
            "single rank",
            fmt::join(kNeeded, ", "), fmt::join(missing, ", "), missing.size() == 1 ? "is" : "are");
    refuse_lone_sign(v, missing);
    info = comm::RankInfo{};
    if (v.number("SLURM_NTASKS", 1) > 1)
      found.warnings.push_back(
          fmt::format("SLURM_NTASKS={}: has no effect in a batch script, which runs as a single rank; start "
                      "the ranks with srun",
                      v.text("SLURM_NTASKS")));
  }
  azure_attempt(v, *info);
  if (v.has("CLEAVE_JOB_ID")) info->job_id = v.text("CLEAVE_JOB_ID");
  info->attempt = v.number("CLEAVE_ATTEMPT", info->attempt);
  info->token = v.text("CLEAVE_TOKEN");
  info->meeting_port = v.number("CLEAVE_MEETING_PORT", 0);
  info->meeting_fd = v.number("CLEAVE_MEETING_FD", -1);
  check(*info);
  found.info = *info;
  return found;
}

}  // namespace cleave::launcher
