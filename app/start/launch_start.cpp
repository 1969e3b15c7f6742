#include "app/start/launch_start.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "app/start/launch_program.h"
#include "app/start/ssh_hosts.h"
#include "comm/rendezvous/socket.h"
#include "core/error.h"
#include "core/warnings.h"
#include "launcher/forwarded.h"
#include "launcher/job_id.h"
#include "launcher/machine.h"
#include "launcher/pmi.h"
#include "launcher/variables.h"

namespace cleave::app {
namespace {

constexpr auto kSecretWithin = std::chrono::minutes(5);

launcher::NodeStart common_of(const LaunchRequest& r, const JobName& job) {
  launcher::NodeStart node;
  node.job_id = job.id;
  node.token = job.token;
  node.log_folder = r.log_folder;
  require(!r.no_bind || !r.bind_cores, Exit::usage,
          "--bind_cores_to_rank: conflicts with --no_bind; give one of them");
  node.binding.how = r.no_bind      ? launcher::Binding::How::none
                     : r.bind_cores ? launcher::Binding::How::asked
                                    : launcher::Binding::How::share;
  if (!r.bind_core_list.empty()) node.binding.cores = launcher::parse_core_list(r.bind_core_list);
  return node;
}

// The job of a command line: its hosts, and the rule that selected them.
struct Made {
  launcher::Hosts hosts;
  bool set_devices = true, several = false;
  std::string why;
};

Made ranks_asked_for(const LaunchRequest& r) {
  const bool others = r.hostfile_given || !r.filter.include.empty() || !r.filter.exclude.empty() ||
                      r.filter.num_nodes >= 0 || r.filter.num_gpus >= 0 || !r.world_info.empty();
  require(!others, Exit::usage,
          "-n {}: starts ranks on this machine only, and conflicts with a hostfile, --include, --exclude, "
          "--num_nodes, --num_gpus and --world_info; give one kind",
          r.ranks);
  std::vector<int> slots(static_cast<size_t>(r.ranks));
  for (int i = 0; i < r.ranks; ++i) slots[size_t(i)] = i;
  return {{{"localhost", slots}}, false, false, fmt::format("-n {}", r.ranks)};
}

// Returns this machine's GPUs, for a job without a hostfile.
Made slots_here(const LaunchRequest& r, const launcher::Environment& env) {
  const int gpus = launcher::usable_gpus(env);
  const int wanted = std::max(r.filter.num_gpus, launcher::slots_named(r.filter));
  std::vector<int> slots = launcher::slots_of_machine(env, gpus, wanted);
  const bool numbers = !slots.empty();
  const int names = int(launcher::device_names(env).size());
  if (!numbers) slots = launcher::slots_of_machine({}, names > 0 ? names : gpus, wanted);
  Made made{launcher::select_hosts({{"localhost", slots}}, r.filter), gpus > 0 && numbers, r.force_multi, ""};
  made.why = fmt::format(
      "{}{}",
      gpus == 0   ? "this machine without a GPU"
      : gpus == 1 ? "this machine with 1 GPU"
                  : fmt::format("this machine with {} GPUs", gpus),
      launcher::Variables(env).has("CUDA_VISIBLE_DEVICES") && gpus > 0 ? " (CUDA_VISIBLE_DEVICES)" : "");
  return made;
}

Made made_of(const LaunchRequest& r, const launcher::Environment& env,
             const std::optional<launcher::Hosts>& hosts) {
  if (r.ranks > 0) return ranks_asked_for(r);
  if (!r.world_info.empty()) return {launcher::decode_world_info(r.world_info), true, false, "--world_info"};
  if (!has_hostfile(r)) return slots_here(r, env);
  Made made{hosts ? *hosts : named_hosts(r), true, false, "hostfile " + r.hostfile};
  // The last host that answers may be any of the hostfile.
  const bool elsewhere =
      r.elastic && made.hosts.size() == 1 && !launcher::is_this_machine(made.hosts[0].name);
  made.several = (made.hosts.size() > 1 || r.force_multi || elsewhere) && !r.no_ssh;
  if (made.hosts.size() == 1 && !made.several && !r.no_ssh && !launcher::is_this_machine(made.hosts[0].name))
    made.why += fmt::format("; its only host {} is assumed to be this machine (--force_multi connects to it)",
                            made.hosts[0].name);
  return made;
}

std::string master_of(const Made& made, const LaunchRequest& r) {
  if (!r.master_addr.empty()) return r.master_addr;
  if (!made.several && !r.no_ssh) return comm::RankInfo{}.master_addr;
  const std::string& host = made.hosts[0].name;
  if (r.no_ssh && made.hosts.size() == 1) return comm::RankInfo{}.master_addr;
  if (const std::string address = launcher::address_of(host); !address.empty()) return address;
  require(!r.no_ssh, Exit::usage, "--no_ssh: the address of {} is unknown; give --master_addr", host);
  return r.dry_run ? host : asked_address(host, r);
}

int port_of_request(const Made& made, const LaunchRequest& r, const std::string& job_id) {
  if (r.master_port > 0) return r.master_port;
  if (r.no_ssh || !r.world_info.empty()) return launcher::kDefaultPort;  // the other launchers must know it
  if (made.several) return launcher::port_from(job_id);
  return r.dry_run ? comm::port_of(comm::reserve_port(0)) : 0;
}

}  // namespace

launcher::Hosts named_hosts(const LaunchRequest& r) {
  return launcher::select_hosts(launcher::read_hostfile(r.hostfile), r.filter);
}

bool has_hostfile(const LaunchRequest& r) { return r.hostfile_given || std::filesystem::exists(r.hostfile); }

JobName new_job_name() { return {launcher::new_job_id(), launcher::new_token()}; }

LaunchStart start_of(const LaunchRequest& r, const launcher::Environment& env, const JobName& job,
                     const std::optional<launcher::Hosts>& hosts) {
  const Made made = made_of(r, env, hosts);
  launcher::NodeStart common = common_of(r, job);
  common.set_devices = made.set_devices;
  common.master_addr = master_of(made, r);
  common.master_port = port_of_request(made, r, common.job_id);
  LaunchStart start;
  start.several = made.several;
  start.hosts = made.hosts;
  if (made.several) {
    common.folder = std::filesystem::current_path().string();
    common.environment = launcher::forwarded_variables(env, common.folder);
    for (const auto& [name, value] : launcher::environment_of_files(env, common.folder))
      common.environment[name] = value;
  }
  if (r.no_ssh || !r.world_info.empty()) {
    require(r.node_rank >= 0 && r.node_rank < int(made.hosts.size()), Exit::usage,
            "--node_rank: out of range (got {}; there {} {} host{}: {}); give the index of this host, from 0",
            r.node_rank, made.hosts.size() == 1 ? "is" : "are", made.hosts.size(),
            made.hosts.size() == 1 ? "" : "s", made.why);
    start.node = size_t(r.node_rank);
    common.job_id.clear();  // each host's launcher would create another one
    common.token = launcher::Variables(env).text("CLEAVE_TOKEN");
  }
  start.plan = launcher::make_plan(made.hosts, program_of(r, !made.several), common);
  start.plan.why = made.why;
  return start;
}

// Runs once per host, started by another launcher: returns this host's part of its job.
LaunchStart start_of_node(const LaunchRequest& r, const launcher::Environment& env,
                          const comm::RankInfo& info) {
  require(r.filter.num_nodes < 0 || r.filter.num_nodes == info.nodes, Exit::usage,
          "--num_nodes: conflicts with the launcher (got {}, but {} started {} nodes); leave it out",
          r.filter.num_nodes, info.launched_by, info.nodes);
  require(r.filter.include.empty() && r.filter.exclude.empty(), Exit::usage,
          "--include, --exclude: select hosts of a hostfile, but {} selected the hosts; leave them out",
          info.launched_by);
  require(r.filter.num_gpus < 0 || info.local_size == 0 || r.filter.num_gpus == info.local_size, Exit::usage,
          "--num_gpus: conflicts with the launcher (got {}, but {} expects {} ranks per node); leave it out",
          r.filter.num_gpus, info.launched_by, info.local_size);
  LaunchRequest one = r;
  one.filter = {.num_gpus = r.filter.num_gpus >= 0 ? r.filter.num_gpus
                            : info.local_size > 0  ? info.local_size
                                                   : -1};
  one.force_multi = false;
  const Made here = slots_here(one, env);
  launcher::NodeStart common = common_of(r, new_job_name());
  common.set_devices = here.set_devices;
  common.master_addr = info.master_addr;
  common.master_port = info.master_port;
  common.job_id = info.job_id;  // equal on all nodes, which share no secret
  common.attempt = info.attempt;
  common.token = launcher::Variables(env).text("CLEAVE_TOKEN");
  std::string why;
  if (common.token.empty() && info.nodes > 1 && !r.dry_run)  // this process is a task of the other launcher
    common.token = launcher::secret_by_pmi(env, comm::Clock::now() + kSecretWithin, why);
  if (!why.empty()) warn("{}", why);
  LaunchStart start;
  launcher::Hosts hosts;
  for (int n = 0; n < info.nodes; ++n) hosts.push_back({fmt::format("node-{}", n), here.hosts[0].slots});
  start.plan = launcher::make_plan(hosts, program_of(r, true), common);
  start.plan.why =
      fmt::format("{} started one launcher on each of {} nodes; this is node {}, with {} ranks per node",
                  info.launched_by, info.nodes, info.node_rank, here.hosts[0].slots.size());
  start.node = size_t(info.node_rank);
  return start;
}

}  // namespace cleave::app
