#include "app/start/seen_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/printable.h"
#include "core/secrets.h"
#include "launcher/role.h"

namespace cleave::app {
namespace {

using Json = nlohmann::ordered_json;

// Returns true for variables of launchers and clusters; entries that end with '_' are prefixes.
bool is_of_launchers(const std::string& name) {
  constexpr std::string_view kNames[] = {"RANK",
                                         "WORLD_SIZE",
                                         "NODE_RANK",
                                         "MASTER_IP",
                                         "TF_CONFIG",
                                         "CUDA_VISIBLE_DEVICES",
                                         "OMP_NUM_THREADS",
                                         "LOCAL_",
                                         "GROUP_",
                                         "CROSS_",
                                         "MASTER_",
                                         "CLEAVE_",
                                         "TORCHELASTIC_",
                                         "PET_",
                                         "OMPI_",
                                         "PMI_",
                                         "PMIX_",
                                         "PALS_",
                                         "MV2_COMM_",
                                         "MPI_LOCALRANKID",
                                         "MPI_LOCALNRANKS",
                                         "I_MPI_",
                                         "SLURM_",
                                         "AZUREML_",
                                         "AZ_BATCH_",
                                         "AZ_BATCHAI_",
                                         "AZURE_ML_",
                                         "SM_",
                                         "DLTS_",
                                         "AISC_",
                                         "NCCL_"};
  return std::any_of(std::begin(kNames), std::end(kNames), [&](std::string_view known) {
    return known.back() == '_' ? name.starts_with(known) : name == known;
  });
}

// SageMaker's summaries repeat arguments and hyperparameters, which may contain secrets.
std::string shown(const std::string& name, const std::string& value) {
  constexpr size_t kMost = 160;
  if (is_secret(name) || name == "SM_TRAINING_ENV" || name == "SM_HPS" || name == "SM_USER_ARGS" ||
      name.starts_with("SM_HP_"))
    return fmt::format("masked, {} bytes", value.size());
  const std::string open = without_secrets(value);
  return printable(open.size() > kMost ? open.substr(0, kMost) + "..." : open);
}

std::string said_of_rank(const launcher::Environment& env) {
  try {
    const comm::RankInfo i = launcher::discover_ranks(env).info;
    return fmt::format("rank {} of {}, local rank {} of {}, node {} of {}, master {}:{}, attempt {}: {}",
                       i.rank, i.world, i.local_rank, i.local_size, i.node_rank, i.nodes, i.master_addr,
                       i.master_port, i.attempt, i.launched_by);
  } catch (const Error& e) {
    return fmt::format("error: {}", e.what());
  }
}

std::string said_of_launcher(const launcher::Environment& env) {
  try {
    const launcher::LauncherRole role = launcher::role_of_launcher(env);
    if (role.kind == launcher::LauncherRole::Kind::make) return "starts a new job";
    if (role.kind == launcher::LauncherRole::Kind::adopt) return "is a rank and runs the program";
    return fmt::format("starts the ranks of node {} of {}", role.info.node_rank, role.info.nodes);
  } catch (const Error& e) {
    return fmt::format("error: {}", e.what());
  }
}

}  // namespace

int report_environment(bool as_json) {
  const launcher::Environment env = launcher::environment_of_process();
  Json seen = Json::object();
  for (const auto& [name, value] : env)
    if (is_of_launchers(name)) seen[name] = shown(name, value);
  const Json report{{"variables", seen}, {"rank", said_of_rank(env)}, {"launcher", said_of_launcher(env)}};
  if (as_json) {
    std::printf("%s\n", report.dump(2).c_str());
    return 0;
  }
  for (const auto& [name, value] : seen.items())
    std::printf("%s=%s\n", name.c_str(), value.get<std::string>().c_str());
  std::printf("a rank:     %s\na launcher: %s\n", report["rank"].get<std::string>().c_str(),
              report["launcher"].get<std::string>().c_str());
  return 0;
}

}  // namespace cleave::app
