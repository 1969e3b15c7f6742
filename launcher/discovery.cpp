#include "launcher/discovery.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "launcher/slurm.h"

namespace cleave {
namespace {

constexpr int kDefaultPort = 29500;  // torch's
constexpr int kAzurePort = 6105;     // Azure ML's documents
constexpr int kAzureLocalPort = 54965;

class Variables {
 public:
  explicit Variables(const Environment& env) : env_(env) {}

  bool has(const std::string& name) const { return env_.count(name) && !env_.at(name).empty(); }
  std::string text(const std::string& name) const { return has(name) ? env_.at(name) : std::string(); }

  int number(const std::string& name) const {
    const std::string value = text(name);
    int n = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
    require(error == std::errc() && end == value.data() + value.size() && n >= 0, Exit::usage,
            "{}='{}' is not a number", name, value);
    return n;
  }
  int number(const std::string& name, int otherwise) const { return has(name) ? number(name) : otherwise; }

  std::vector<std::string> missing(const std::vector<std::string>& names) const {
    std::vector<std::string> list;
    std::copy_if(names.begin(), names.end(), std::back_inserter(list), [&](auto& n) { return !has(n); });
    return list;
  }

 private:
  const Environment& env_;
};

nlohmann::json parse_json(const Variables& v, const std::string& name) {
  auto json = nlohmann::json::parse(v.text(name), nullptr, false);
  require(!json.is_discarded(), Exit::usage, "{} is not JSON: {}", name, v.text(name));
  return json;
}

const std::vector<std::string> kTorchSet = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"};

// A port that all ranks of a job derive alike, and two jobs on one host do not.
int port_from(const std::string& job) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (char c : job) hash = (hash ^ uint8_t(c)) * 16777619u;
  return 20000 + int(hash % 12000);  // below the range the kernel gives out
}

void set_master(RankInfo& info, const std::string& master) {
  const size_t colon = master.rfind(':');
  if (colon == std::string::npos || master.find(':') != colon) {  // a name, or an IPv6 address
    info.master_addr = master;
    return;
  }
  info.master_addr = master.substr(0, colon);
  info.master_port = Variables({{"--master port", master.substr(colon + 1)}}).number("--master port");
}

// An empty result: this launcher did not start us.
using Rule = std::optional<RankInfo> (*)(const Variables& v);

std::optional<RankInfo> by_torch_set(const Variables& v) {
  if (!v.missing(kTorchSet).empty()) return {};
  RankInfo info;
  info.rank = v.number("RANK");
  info.world = v.number("WORLD_SIZE");
  info.local_rank = v.number("LOCAL_RANK");
  info.master_addr = v.text("MASTER_ADDR");
  info.master_port = v.number("MASTER_PORT");
  info.nodes =
      std::max(1, v.number("GROUP_WORLD_SIZE", v.number("CROSS_SIZE", v.number("AZUREML_NODE_COUNT", 1))));
  info.node_rank = v.number("GROUP_RANK", v.number("CROSS_RANK", v.number("NODE_RANK", 0)));
  info.local_size =
      v.number("LOCAL_WORLD_SIZE", v.number("LOCAL_SIZE", std::max(1, info.world / info.nodes)));
  if (v.has("CLEAVE_LAUNCHED")) {
    // Our launcher has spoken: what its own launcher had set means nothing here.
    info.launched_by = "cleave launch";
    return info;
  }
  info.attempt = v.number("TORCHELASTIC_RESTART_COUNT", 0);
  info.port_is_taken = v.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  info.job_id = v.text("TORCHELASTIC_RUN_ID");
  const std::string process = v.text("AZUREML_PROCESS_NAME");
  require(!process.starts_with("rank_") || process == fmt::format("rank_{}", info.rank), Exit::usage,
          "RANK={} and AZUREML_PROCESS_NAME={} contradict each other", info.rank, process);
  const char* who = v.has("TORCHELASTIC_RUN_ID") ? "torchrun"
                    : v.has("AZUREML_RUN_ID")    ? "Azure ML, pytorch distribution"
                    : v.has("CROSS_SIZE")        ? "deepspeed"
                                                 : "the environment";
  info.launched_by = fmt::format("{} ({})", who, fmt::join(kTorchSet, ", "));
  return info;
}

// Launchers of the MPI kind say who we are, but rarely where rank 0 is.
void find_master(const Variables& v, RankInfo& info, const std::string& how_to_pass) {
  if (!info.job_id.empty()) info.master_port = port_from(info.job_id);
  info.master_port = v.number("MASTER_PORT", info.master_port);
  if (v.has("MASTER_ADDR")) {
    info.master_addr = v.text("MASTER_ADDR");
    return;
  }
  if (info.local_size == info.world) return;  // 127.0.0.1
  // "877461504.0;tcp://192.0.2.2,198.51.100.7:38153;..." names the host of mpirun, where rank 0 usually is.
  const std::string uri = v.text("OMPI_MCA_orte_hnp_uri");
  const size_t at = uri.find("tcp://");
  require(at != std::string::npos, Exit::usage,
          "rank {} of {} ({}) does not know where rank 0 is: MASTER_ADDR is missing; pass it with {}",
          info.rank, info.world, info.launched_by, how_to_pass);
  info.master_addr = uri.substr(at + 6, uri.find_first_of(":,", at + 6) - at - 6);
}

void azure_master(const Variables& v, RankInfo& info) {
  info.launched_by = "Azure ML, mpi distribution (OMPI_COMM_WORLD_*)";
  info.job_id = v.text("AZUREML_RUN_ID");
  if (info.local_size == info.world) {
    info.master_port = v.number("MASTER_PORT", kAzureLocalPort);
    const std::string host = v.text("AZ_BATCHAI_MPI_MASTER_NODE");
    if (!host.empty() && host != "localhost") info.master_addr = host;
    return;
  }
  info.master_port = v.number("MASTER_PORT", kAzurePort);
  for (const char* name : {"MASTER_ADDR", "AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE", "MASTER_IP",
                           "AZ_BATCHAI_JOB_MASTER_NODE_IP"}) {
    const std::string host =
        v.text(name).substr(0, v.text(name).find(':'));  // the port there belongs to Batch
    if (host.empty() || host == "localhost") continue;
    info.master_addr = host;
    return;
  }
  fail(Exit::usage,
       "Azure ML started rank {} of {} by mpi, but none of AZ_BATCH_MASTER_NODE, AZ_BATCHAI_MPI_MASTER_NODE, "
       "MASTER_IP "
       "and MASTER_ADDR says where rank 0 is",
       info.rank, info.world);
}

void sagemaker_master(const Variables& v, RankInfo& info) {
  info.launched_by = "SageMaker, mpi (OMPI_COMM_WORLD_*, SM_HOSTS)";
  const auto hosts = parse_json(v, "SM_HOSTS");
  require(hosts.is_array() && !hosts.empty() && hosts[0].is_string(), Exit::usage,
          "SM_HOSTS={} is not a list of hosts", v.text("SM_HOSTS"));
  info.nodes = int(hosts.size());
  for (size_t i = 0; i < hosts.size(); ++i)
    if (hosts[i] == v.text("SM_CURRENT_HOST")) info.node_rank = int(i);
  info.master_addr = hosts[0].get<std::string>();
  info.master_port = v.number("MASTER_PORT", kDefaultPort);
}

std::optional<RankInfo> by_open_mpi(const Variables& v) {
  if (!v.has("OMPI_COMM_WORLD_RANK")) return {};
  const auto missing =
      v.missing({"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  require(missing.empty(), Exit::usage, "OMPI_COMM_WORLD_RANK is set, but {} is missing",
          fmt::join(missing, ", "));
  RankInfo info;
  info.rank = v.number("OMPI_COMM_WORLD_RANK");
  info.world = v.number("OMPI_COMM_WORLD_SIZE");
  info.local_rank = v.number("OMPI_COMM_WORLD_LOCAL_RANK");
  info.local_size = std::max(1, v.number("OMPI_COMM_WORLD_LOCAL_SIZE"));
  info.nodes = std::max(1, info.world / info.local_size);
  info.node_rank = info.rank / info.local_size;
  const int tasks = v.number("SLURM_STEP_NUM_TASKS", 1);
  require(info.world > 1 || tasks == 1, Exit::usage,
          "OMPI_COMM_WORLD_SIZE=1 but SLURM_STEP_NUM_TASKS={}: {} lone ranks were started. Open MPI was "
          "built without "
          "SLURM's PMI: use mpirun inside the allocation, or srun --mpi=pmix",
          tasks, tasks);
  info.launched_by = "Open MPI (OMPI_COMM_WORLD_*)";
  if (v.has("AZUREML_EXPERIMENT_ID") || v.has("AZUREML_RUN_ID")) {
    azure_master(v, info);
  } else if (v.has("SM_HOSTS")) {
    sagemaker_master(v, info);
  } else {
    info.job_id = v.text("PMIX_NAMESPACE");
    find_master(v, info, "mpirun -x MASTER_ADDR=HOST");
  }
  return info;
}

std::optional<RankInfo> by_hydra(const Variables& v) {
  const std::string rank = v.has("PMI_RANK") ? "PMI_RANK" : "PMIX_RANK";
  if (!v.has(rank) || !v.has("PMI_SIZE")) return {};
  const bool pals = v.has("PALS_LOCAL_RANKID");
  const std::string local_rank = pals ? "PALS_LOCAL_RANKID" : "MPI_LOCALRANKID";
  const std::string local_size = pals ? "PMI_LOCAL_SIZE" : "MPI_LOCALNRANKS";
  const auto missing = v.missing({local_rank, local_size});
  require(missing.empty(), Exit::usage, "{} and PMI_SIZE are set, but {} is missing", rank,
          fmt::join(missing, ", "));
  RankInfo info;
  info.rank = v.number(rank);
  info.world = v.number("PMI_SIZE");
  info.local_rank = v.number(local_rank);
  info.local_size = std::max(1, v.number(local_size));
  info.nodes = std::max(1, info.world / info.local_size);
  info.node_rank = info.rank / info.local_size;
  info.job_id = v.text("PALS_APID");
  info.launched_by = fmt::format("{} ({}, PMI_SIZE)", pals ? "PALS" : "MPICH or Intel MPI", rank);
  find_master(v, info, "mpiexec -genv MASTER_ADDR HOST");
  return info;
}

std::optional<RankInfo> by_mvapich(const Variables& v) {
  if (!v.has("MV2_COMM_WORLD_RANK")) return {};
  RankInfo info;
  info.rank = v.number("MV2_COMM_WORLD_RANK");
  info.world = v.number("MV2_COMM_WORLD_SIZE");
  info.local_rank = v.number("MV2_COMM_WORLD_LOCAL_RANK");
  info.local_size = std::max(1, v.number("MV2_COMM_WORLD_LOCAL_SIZE"));
  info.launched_by = "MVAPICH2 (MV2_COMM_WORLD_*)";
  find_master(v, info, "mpirun_rsh MASTER_ADDR=HOST");
  return info;
}

std::optional<RankInfo> by_slurm_step(const Variables& v) {
  // A batch script has SLURM_PROCID=0 too; only a step has all three.
  if (!v.missing({"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID"}).empty()) return {};
  RankInfo info;
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
  else if (!list.empty())
    info.master_addr = expand_node_list(list).front();
  else
    require(info.local_size == info.world, Exit::usage,
            "SLURM started rank {} of {}, but SLURM_STEP_NODELIST is missing: where is rank 0?", info.rank,
            info.world);
  return info;
}

RankInfo read_tf_config(const Variables& v) {
  const auto config = parse_json(v, "TF_CONFIG");
  const auto task = config.value("task", nlohmann::json::object());
  const std::string type = task.value("type", "");
  require(type == "chief" || type == "worker", Exit::usage,
          "TF_CONFIG makes this process a '{}', which Cleave has no use for; it needs workers only: set "
          "parameter_server_count to 0",
          type);
  const auto cluster = config.value("cluster", nlohmann::json::object());
  const auto chiefs = cluster.value("chief", std::vector<std::string>());
  std::vector<std::string> hosts = chiefs;
  for (const std::string& w : cluster.value("worker", std::vector<std::string>())) hosts.push_back(w);
  require(!hosts.empty(), Exit::usage, "TF_CONFIG names no worker: {}", v.text("TF_CONFIG"));
  RankInfo info;
  info.rank = info.node_rank = task.value("index", 0) + (type == "worker" ? int(chiefs.size()) : 0);
  info.world = info.nodes = int(hosts.size());
  info.master_addr = hosts[0].substr(0, hosts[0].find(':'));
  info.master_port = v.number("MASTER_PORT", kAzurePort);
  info.job_id = v.text("AZUREML_RUN_ID");
  info.launched_by = "a TensorFlow launcher (TF_CONFIG)";
  return info;
}

std::optional<RankInfo> by_tf_config(const Variables& v) {
  if (!v.has("TF_CONFIG")) return {};
  try {
    return read_tf_config(v);
  } catch (const nlohmann::json::exception&) {
    fail(Exit::usage, "TF_CONFIG has not the form {{cluster: {{worker: [...]}}, task: {{type, index}}}}: {}",
         v.text("TF_CONFIG"));
  }
}

std::optional<RankInfo> by_pod(const Variables& v) {
  if (!v.missing({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}).empty()) return {};
  const int per_pod = v.number("PET_NPROC_PER_NODE", 1);
  require(per_pod <= 1, Exit::usage,
          "RANK={} counts pods, and PET_NPROC_PER_NODE={} wants that many ranks in each: set it to 1, or let "
          "a launcher "
          "(torchrun --no-python) start the ranks of the pod, which gives LOCAL_RANK",
          v.text("RANK"), per_pod);
  RankInfo info;
  info.rank = info.node_rank = v.number("RANK");
  info.world = info.nodes = v.number("WORLD_SIZE");
  info.master_addr = v.text("MASTER_ADDR");
  info.master_port = v.number("MASTER_PORT");
  info.launched_by = "one process a pod (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)";
  return info;
}

constexpr Rule kRules[] = {by_torch_set,  by_open_mpi,  by_hydra, by_mvapich,
                           by_slurm_step, by_tf_config, by_pod};

RankInfo by_command_line(const Variables& v, const RankOverrides& o) {
  require(o.rank && o.world, Exit::usage, "--rank and --world-size belong together; --{} is missing",
          o.rank ? "world-size" : "rank");
  RankInfo info;
  info.rank = *o.rank;
  info.world = *o.world;
  info.local_rank = 0;
  info.master_port = v.number("MASTER_PORT", kDefaultPort);
  if (v.has("MASTER_ADDR")) info.master_addr = v.text("MASTER_ADDR");
  if (o.master) set_master(info, *o.master);
  info.launched_by = "the command line (--rank, --world-size, --master)";
  return info;
}

void check(const RankInfo& info) {
  require(info.world >= 1 && info.rank < info.world, Exit::usage, "{}: rank {} of {} ranks does not exist",
          info.launched_by, info.rank, info.world);
  require(
      info.local_size >= 1 && info.local_rank < std::max(info.local_size, 1) && info.local_size <= info.world,
      Exit::usage, "{}: local rank {} of {} on this host, in a job of {} ranks, is impossible",
      info.launched_by, info.local_rank, info.local_size, info.world);
  require(info.master_port >= 1 && info.master_port <= 65535, Exit::usage, "{}: port {} does not exist",
          info.launched_by, info.master_port);
}

void azure_attempt(const Variables& v, RankInfo& info) {
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
  std::optional<RankInfo> info;
  if (overrides.rank || overrides.world) info = by_command_line(v, overrides);
  for (Rule rule : kRules)
    if (!info) info = rule(v);
  if (!info) {
    const auto missing = v.missing(kTorchSet);
    require(!v.has("RANK") && !v.has("WORLD_SIZE") && !v.has("LOCAL_RANK"), Exit::usage,
            "some of {} are set, but {} {} missing: set all, or none for a single rank",
            fmt::join(kTorchSet, ", "), fmt::join(missing, ", "), missing.size() == 1 ? "is" : "are");
    info = RankInfo{};
    if (v.number("SLURM_NTASKS", 1) > 1)
      found.warnings.push_back(
          fmt::format("SLURM_NTASKS={}, but this is the batch script and not a step: running a "
                      "single rank. Start the ranks with srun",
                      v.text("SLURM_NTASKS")));
  }
  azure_attempt(v, *info);
  if (v.has("CLEAVE_JOB_ID")) info->job_id = v.text("CLEAVE_JOB_ID");
  info->attempt = v.number("CLEAVE_ATTEMPT", info->attempt);
  info->token = v.text("CLEAVE_TOKEN");
  check(*info);
  found.info = *info;
  return found;
}

}  // namespace cleave
