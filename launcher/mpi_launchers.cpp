#include "launcher/mpi_launchers.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

namespace cleave::launcher {
namespace {

constexpr int kAzureLocalPort = 54965;

void find_master(const Variables& v, comm::RankInfo& info, const std::string& how_to_pass) {
  if (!info.job_id.empty()) info.master_port = port_from(info.job_id);
  info.master_port = v.number("MASTER_PORT", info.master_port);
  if (v.has("MASTER_ADDR")) {
    info.master_addr = v.text("MASTER_ADDR");
    return;
  }
  if (info.local_size == info.world) return;  // rank 0 is at 127.0.0.1
  // "877461504.0;tcp://192.0.2.2,198.51.100.7:38153;..." names mpirun's host, which usually has rank 0.
  const std::string uri = v.text("OMPI_MCA_orte_hnp_uri");
  const size_t at = uri.find("tcp://");
  require(at != std::string::npos, Exit::usage,
          "MASTER_ADDR: missing, so rank {} of {} ({}) cannot find rank 0; pass it with {}", info.rank,
          info.world, info.launched_by, how_to_pass);
  info.master_addr = uri.substr(at + 6, uri.find_first_of(":,", at + 6) - at - 6);
}

void azure_master(const Variables& v, comm::RankInfo& info) {
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
    const std::string host = v.text(name).substr(0, v.text(name).find(':'));  // this port belongs to Batch
    if (host.empty() || host == "localhost") continue;
    info.master_addr = host;
    return;
  }
  fail(Exit::usage,
       "Azure ML (mpi): the address of rank 0 is unknown for rank {} of {} (expected one of "
       "AZ_BATCH_MASTER_NODE, AZ_BATCHAI_MPI_MASTER_NODE, MASTER_IP and MASTER_ADDR)",
       info.rank, info.world);
}

void sagemaker_master(const Variables& v, comm::RankInfo& info) {
  info.launched_by = "SageMaker, mpi (OMPI_COMM_WORLD_*, SM_HOSTS)";
  const auto hosts = nlohmann::json::parse(v.text("SM_HOSTS"), nullptr, false);
  require(hosts.is_array() && !hosts.empty() && hosts[0].is_string(), Exit::usage,
          "SM_HOSTS: is not a list of hosts (got {})", v.text("SM_HOSTS"));
  info.nodes = int(hosts.size());
  for (size_t i = 0; i < hosts.size(); ++i)
    if (hosts[i] == v.text("SM_CURRENT_HOST")) info.node_rank = int(i);
  info.master_addr = hosts[0].get<std::string>();
  info.master_port = v.number("MASTER_PORT", kDefaultPort);
}

}  // namespace

std::optional<comm::RankInfo> by_open_mpi(const Variables& v) {
  if (!v.has("OMPI_COMM_WORLD_RANK")) return {};
  const auto missing =
      v.missing({"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  require(missing.empty(), Exit::usage, "{}: missing, although OMPI_COMM_WORLD_RANK is set",
          fmt::join(missing, ", "));
  comm::RankInfo info;
  info.rank = v.number("OMPI_COMM_WORLD_RANK");
  info.world = v.number("OMPI_COMM_WORLD_SIZE");
  info.local_rank = v.number("OMPI_COMM_WORLD_LOCAL_RANK");
  info.local_size = std::max(1, v.number("OMPI_COMM_WORLD_LOCAL_SIZE"));
  info.nodes = std::max(1, info.world / info.local_size);
  info.node_rank = info.rank / info.local_size;
  const int tasks = v.number("SLURM_STEP_NUM_TASKS", 1);
  require(
      info.world > 1 || tasks == 1, Exit::usage,
      "OMPI_COMM_WORLD_SIZE=1: conflicts with SLURM_STEP_NUM_TASKS={}, so {} separate single ranks were "
      "started; Open MPI was built without SLURM PMI: use mpirun inside the allocation, or srun --mpi=pmix",
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

std::optional<comm::RankInfo> by_hydra(const Variables& v) {
  const std::string rank = v.has("PMI_RANK") ? "PMI_RANK" : "PMIX_RANK";
  if (!v.has(rank) || !v.has("PMI_SIZE")) return {};
  const bool pals = v.has("PALS_LOCAL_RANKID");
  const std::string local_rank = pals ? "PALS_LOCAL_RANKID" : "MPI_LOCALRANKID";
  const std::string local_size = pals ? "PMI_LOCAL_SIZE" : "MPI_LOCALNRANKS";
  if (v.has("SLURM_STEP_ID") && !v.has(local_rank))
    return {};  // srun --mpi=pmi2, which sets SLURM variables for the rest
  const auto missing = v.missing({local_rank, local_size});
  require(missing.empty(), Exit::usage, "{} and PMI_SIZE are set, but {} is missing", rank,
          fmt::join(missing, ", "));
  comm::RankInfo info;
  info.rank = v.number(rank);
  info.world = v.number("PMI_SIZE");
  info.local_rank = v.number(local_rank);
  info.local_size = std::max(1, v.number(local_size));
  info.nodes = std::max(1, info.world / info.local_size);
  info.node_rank = info.rank / info.local_size;
  info.job_id = v.text("PALS_APID");
  const char* who = pals ? "PALS" : v.has("I_MPI_MPIRUN") ? "Intel MPI" : "MPICH or Intel MPI";
  info.launched_by = fmt::format("{} ({}, PMI_SIZE)", who, rank);
  find_master(v, info, "mpiexec -genv MASTER_ADDR HOST");
  return info;
}

std::optional<comm::RankInfo> by_mvapich(const Variables& v) {
  if (!v.has("MV2_COMM_WORLD_RANK")) return {};
  comm::RankInfo info;
  info.rank = v.number("MV2_COMM_WORLD_RANK");
  info.world = v.number("MV2_COMM_WORLD_SIZE");
  info.local_rank = v.number("MV2_COMM_WORLD_LOCAL_RANK");
  info.local_size = std::max(1, v.number("MV2_COMM_WORLD_LOCAL_SIZE"));
  info.launched_by = "MVAPICH2 (MV2_COMM_WORLD_*)";
  find_master(v, info, "mpirun_rsh MASTER_ADDR=HOST");
  return info;
}

}  // namespace cleave::launcher
