#include "launcher/placed_rank.h"

#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "core/cores.h"
#include "core/error.h"
#include "launcher/machine.h"
#include "launcher/memory_policy.h"
#include "launcher/rank_gpus.h"

namespace cleave::launcher {
namespace {

// A SLURM task may have been one launcher for several ranks, and programs also read their place from SLURM
// variables.
void place_in_slurm(const NodeStart& node, const RankStart& rank, Environment& env) {
  const std::pair<const char*, int> places[] = {{"SLURM_PROCID", rank.rank},
                                                {"SLURM_LOCALID", rank.local_rank},
                                                {"SLURM_NTASKS", node.world},
                                                {"SLURM_NPROCS", node.world},
                                                {"SLURM_STEP_NUM_TASKS", node.world}};
  if (!env.count("SLURM_STEP_ID")) return;
  for (const auto& [name, value] : places)
    if (const auto at = env.find(name); at != env.end()) at->second = std::to_string(value);
}

}  // namespace

Machine this_machine(const NodeStart& node) {
  Machine machine{.usable = usable_cores(), .topology = topology_of()};
  machine.gpu_nodes = gpu_nodes_of(node, environment_of_process(), machine.topology);
  machine.binds_memory = memory_policy() == MemoryPolicy::unset;
  return machine;
}

RankPlace adopted_place(const comm::RankInfo& info, const std::vector<std::string>& command,
                        const Environment& env, const Machine& machine) {
  if (machine.usable.size() < machine.topology.cpus.size() || info.local_rank >= info.local_size) return {};
  NodeStart node;
  for (int r = 0; r < info.local_size; ++r) node.ranks.push_back({info.rank, r, r, command});
  Machine with_gpus = machine;
  with_gpus.gpu_nodes = gpu_nodes_of(node, env, machine.topology);
  if (std::count(with_gpus.gpu_nodes.begin(), with_gpus.gpu_nodes.end(), -1) > 0) return {};
  const RankPlace place = places_of(node, with_gpus)[size_t(info.local_rank)];
  const auto threads = env.find("OMP_NUM_THREADS");
  const bool too_many = threads != env.end() && std::atol(threads->second.c_str()) > long(place.cores.size());
  return too_many ? RankPlace{} : place;
}

void take_place(const RankPlace& place) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : place.cores) CPU_SET(core, &set);
  if (!place.cores.empty()) sched_setaffinity(0, sizeof(set), &set);
  prefer_memory_of(place.memory);
}

std::string place_of_process(const Topology& topology) {
  if (topology.memory_nodes.size() < 2) return {};
  return describe_place({usable_cores(), preferred_memory_node()}, topology);
}

Placed placed_rank(const NodeStart& node, size_t index, int port, const RankPlace& place) {
  const RankStart& rank = node.ranks[index];
  Placed placed{environment_of_process(), place};
  Environment& env = placed.environment;
  // Variables of an outer launcher describe this process, not the ranks.
  std::erase_if(env, [](const auto& entry) {
    return entry.first.starts_with("TORCHELASTIC_") || entry.first.starts_with("GROUP_") ||
           entry.first == "AZUREML_PROCESS_NAME" || entry.first == "CLEAVE_JOB_ID" ||
           entry.first == "CLEAVE_TOKEN" || entry.first == "CLEAVE_BOARD" ||
           entry.first.starts_with("CLEAVE_MEETING_");
  });
  for (const auto& [name, value] : place_of(node, rank, port)) env[name] = value;
  place_in_slurm(node, rank, env);
  const int gpus = node.set_devices ? gpus_of_machine() : 0;
  require(gpus == 0 || rank.slot < gpus, Exit::usage,
          "{}: has {} GPU{}, but its slot {} was requested; use -n N to start N ranks without regard to GPUs",
          node.host, gpus, gpus == 1 ? "" : "s", rank.slot);
  if (node.set_devices && gpus == 0) env.erase("CUDA_VISIBLE_DEVICES");
  // A process can use only one MIG slice.
  if (const auto names = device_names(env); names.size() > 1 && names[0].starts_with("MIG-"))
    env["CUDA_VISIBLE_DEVICES"] = names[size_t(rank.slot) % names.size()];
  // The rank's program may start CUDA before it joins the job; the variable must be set earlier
  // (set_cuda_environment).
  if (node.world > 1) env.emplace("CUDA_MODULE_LOADING", "EAGER");
  const bool asked = node.binding.how == Binding::How::asked;
  const auto threads = env.find("OMP_NUM_THREADS");
  // Unbound if the user requests more threads than a share has cores.
  if (!asked && threads != env.end() && std::atol(threads->second.c_str()) > long(place.cores.size()))
    placed.place = {};
  const std::vector<int>& cores = placed.place.cores;
  ThreadFacts facts = thread_facts(int(node.ranks.size()));
  facts.own_cores = !cores.empty();  // else all ranks share this process's cores
  if (facts.own_cores) facts.cores = int(cores.size());
  env.emplace("OMP_NUM_THREADS", std::to_string(choose_threads(facts).threads));
  if (asked) env["OMP_NUM_THREADS"] = std::to_string(cores.size());
  if (!cores.empty()) env["CLEAVE_CORES"] = fmt::format("{}", fmt::join(cores, ","));
  return placed;
}

}  // namespace cleave::launcher
