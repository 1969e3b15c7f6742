#include "app/start/launch_options.h"

#include <fmt/ranges.h>

#include "app/parse.h"
#include "core/error.h"

namespace cleave::app {
namespace {

struct Values {
  LaunchRequest request;
  std::string autotuning;  // recognized only to report why it is not supported
  std::string num_nodes;
  std::optional<int> max_restarts;
  std::string launcher = "ssh", log_level = "info", log_folder = "None";
  bool no_ssh_check = false;
};

// N, or MIN:MAX for elastic jobs.
CLI::Validator number_of_nodes() {
  return CLI::Validator(
      [](std::string& text) {
        const size_t colon = text.find(':');
        if (colon == text.npos) return integer(-1)(text);
        std::string least = text.substr(0, colon), most = text.substr(colon + 1);
        const std::string problem = integer(1)(least);
        return problem.empty() ? integer(1)(most) : problem;
      },
      "");
}

void add_hosts(CLI::App& app, Values& v) {
  LaunchRequest& r = v.request;
  app.add_option("-H,--hostfile", r.hostfile,
                 "hosts, one per line: worker-0 slots=4; names may contain ranges, worker-[01-04]")
      ->each([&r](const std::string&) { r.hostfile_given = true; })
      ->capture_default_str();
  app.add_option("-i,--include", r.filter.include, "only these hosts and slots: worker-0@worker-1:0,2");
  app.add_option("-e,--exclude", r.filter.exclude, "exclude these hosts and slots");
  app.add_option("--num_nodes", v.num_nodes, "use the first N hosts, or MIN:MAX hosts of an elastic job")
      ->check(number_of_nodes());
  app.add_option("--num_gpus,--num_accelerators", r.filter.num_gpus,
                 "use the first N slots of each host; number of ranks on hosts without GPUs")
      ->check(integer(-1));
  app.add_option("-n,--nproc", r.ranks, "number of ranks on this machine, independent of its GPUs")
      ->check(integer(1));
  app.add_option("--world_info", r.world_info,
                 "hosts and slots in base64, as DeepSpeed's launchers exchange them");
  app.add_option("--node_rank", r.node_rank, "index of this host, with --no_ssh")->check(integer(-1));
  app.add_option("--master_addr", r.master_addr, "address of rank 0 (default: the first host)");
  app.add_option("--master_port", r.master_port, "port of rank 0 (default: a free port)")
      ->check(integer(0, 65535));
}

void add_launching(CLI::App& app, Values& v) {
  LaunchRequest& r = v.request;
  app.add_option("--launcher", v.launcher,
                 "launcher for other hosts: ssh, pdsh, openmpi, mpich, impi, mvapich or slurm")
      ->capture_default_str();
  app.add_option("--launcher_args", r.launcher_args, "arguments for the launcher, as one word");
  app.add_option("--ssh_port", r.ssh_port, "port of sshd on the hosts")->check(integer(1, 65535));
  app.add_flag("--no_ssh", r.no_ssh, "start only this host's ranks");
  app.add_flag("--no_ssh_check", v.no_ssh_check, "accepted; hosts are contacted when ranks start");
  app.add_flag("--force_multi", r.force_multi, "use the launcher for a single host as well");
  app.add_option(
         "--max_restarts", v.max_restarts,
         "restart the job up to N times after a failure; training resumes from its newest checkpoint. With "
         "cleave.copies_in_memory, only the lost rank restarts (default: 0, elastic jobs 100)")
      ->check(integer(0, 1000000));
  app.add_flag("--elastic_training", r.elastic,
               "use the hosts of the hostfile that answer, and change them while the job runs");
  app.add_option("--min_elastic_nodes", r.min_nodes,
                 "smallest number of hosts of an elastic job (default: 1)")
      ->check(integer(-1));
  app.add_option("--max_elastic_nodes", r.max_nodes,
                 "largest number of hosts of an elastic job (default: all)")
      ->check(integer(-1));
  app.add_flag("--dry_run", r.dry_run, "print the commands for each host without starting them");
  app.add_flag("--save_pid", r.save_pid,
               "write the launcher's process id to /tmp/ID.deepspeed while it runs");
  app.add_option("--enable_each_rank_log", v.log_folder, "folder for one log file per rank");
  app.add_option("--log_level", v.log_level,
                 "log level of the launcher: debug, info, warning, error or critical")
      ->check(one_of({"debug", "info", "warning", "error", "critical"}));
  app.add_flag("-q,--quiet", r.quiet, "same as --log_level error");
}

void add_program(CLI::App& app, Values& v) {
  LaunchRequest& r = v.request;
  app.add_flag("--module", r.module, "run the script as a module (python -m)");
  app.add_flag("--no_python", r.no_python, "run the program directly, without python");
  app.add_flag("--no_local_rank", r.no_local_rank, "do not append --local_rank=N");
  app.add_option("--venv_script", r.venv_script,
                 "script to source before each rank starts, such as venv/bin/activate");
  app.add_flag("--bind_cores_to_rank", r.bind_cores, "bind each rank to separate cores, or fail");
  app.add_option("--bind_core_list", r.bind_core_list, "cores to distribute over the ranks, such as 0,2-5");
  app.add_flag("--no_bind", r.no_bind,
               "do not bind ranks to cores (default: separate cores if there are enough)");
  app.add_option("--autotuning", v.autotuning, "refused")->group("");
}

void take_elastic(Values& v) {
  LaunchRequest& r = v.request;
  const size_t colon = v.num_nodes.find(':');
  if (colon != std::string::npos) {
    require(r.elastic, Exit::usage,
            "--num_nodes: MIN:MAX is for elastic jobs (got {}); add --elastic_training", v.num_nodes);
    require(r.min_nodes < 0 && r.max_nodes < 0, Exit::usage,
            "--num_nodes: {} conflicts with --min_elastic_nodes and --max_elastic_nodes; give one of them",
            v.num_nodes);
    r.min_nodes = std::stoi(v.num_nodes.substr(0, colon)),
    r.max_nodes = std::stoi(v.num_nodes.substr(colon + 1));
  } else if (!v.num_nodes.empty()) {
    r.filter.num_nodes = std::stoi(v.num_nodes);
  }
  r.max_restarts = v.max_restarts.value_or(r.elastic ? 100 : 0);
  if (!r.elastic) {
    require(r.min_nodes < 0 && r.max_nodes < 0, Exit::usage,
            "{}: is for elastic jobs; add --elastic_training",
            r.min_nodes < 0 ? "--max_elastic_nodes" : "--min_elastic_nodes");
    return;
  }
  require(r.max_nodes < 0 || r.min_nodes <= r.max_nodes, Exit::usage,
          "--min_elastic_nodes: above --max_elastic_nodes (got {} and {}); swap them", r.min_nodes,
          r.max_nodes);
  const char* conflict =
      r.ranks > 0             ? "-n"
      : !r.world_info.empty() ? "--world_info"
      : r.no_ssh              ? "--no_ssh"
      : r.launcher != launcher::LauncherKind::ssh && r.launcher != launcher::LauncherKind::pdsh ? "--launcher"
                                                                                                : nullptr;
  require(!conflict, Exit::usage,
          "--elastic_training: needs the hosts of a hostfile by ssh or pdsh, and conflicts with {}; give one "
          "of them",
          conflict);
}

// Returns the option of a word or of an unambiguous abbreviation, otherwise null.
const CLI::Option* option_of(const CLI::App& app, const std::string& name, std::string& whole) {
  const CLI::Option* found = nullptr;
  for (const CLI::Option* o : app.get_options())
    for (const std::string& long_name : o->get_lnames()) {
      if ("--" + long_name == name) return whole = name, o;
      if (name.size() <= 2 || !("--" + long_name).starts_with(name)) continue;
      if (found && found != o) return nullptr;
      found = o, whole = "--" + long_name;
    }
  for (const CLI::Option* o : app.get_options())
    for (const std::string& short_name : o->get_snames())
      if ("-" + short_name == name) return whole = name, o;
  return found;
}

// Expands abbreviations and returns the position of the program.
size_t program_begins(const CLI::App& app, Arguments& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string& a = arguments[i];
    if (a == "--" || !a.starts_with('-') || a == "-") return i;
    const size_t equals = a.starts_with("--") ? a.find('=') : a.npos;
    std::string name = a.substr(0, equals), whole;
    if (name.starts_with("--")) std::replace(name.begin() + 2, name.end(), '-', '_');
    const CLI::Option* option = option_of(app, name, whole);
    if (!option) continue;
    const std::string value = equals == a.npos ? "" : a.substr(equals);
    a = whole + value;
    if (a == "--launcher_args" && i + 1 < arguments.size()) {  // the value has options of another program
      a += "=" + arguments[i + 1];
      arguments.erase(arguments.begin() + long(i) + 1);
      continue;
    }
    if (equals == std::string::npos && option->get_items_expected_min() > 0) ++i;
  }
  return arguments.size();
}

}  // namespace

std::optional<LaunchRequest> parse_launch(const Arguments& all) {
  CLI::App app(
      "Starts the ranks of a job on this machine or on the hosts of a hostfile, and returns the exit code of "
      "the first rank that failed. Accepts DeepSpeed's launcher options:\n  cleave launch [OPTIONS] -- "
      "COMMAND ...     ranks of a Cleave command or of any program\n  cleave launch [OPTIONS] SCRIPT.py ...  "
      "    ranks of a Python script\n  deepspeed [OPTIONS] SCRIPT.py ...          same program under its "
      "second name\nExample: cleave launch -n 2 -- train --deepspeed_config ds_config.json --model tiny "
      "--data corpus.txt",
      "launch");
  Values v;
  add_hosts(app, v);
  add_launching(app, v);
  add_program(app, v);
  Arguments arguments = all;
  const size_t at = program_begins(app, arguments);
  const auto middle = arguments.begin() + long(at);
  if (!parse(app, {arguments.begin(), middle})) return {};
  require(
      v.autotuning.empty(), Exit::usage,
      "--autotuning: not supported; cleave plan --suggest finds a layout that fits without starting a job");
  LaunchRequest& r = v.request;
  r.typed = fmt::format("{}", fmt::join(all.begin(), all.end() - (arguments.end() - middle), " "));
  r.dashes = at < arguments.size() && arguments[at] == "--";
  r.command.assign(middle + (r.dashes ? 1 : 0), arguments.end());
  r.launcher = launcher::parse_launcher(v.launcher);
  take_elastic(v);
  r.quiet = r.quiet || v.log_level == "error" || v.log_level == "critical" || v.log_level == "warning";
  if (v.log_folder != "None") r.log_folder = v.log_folder;
  return r;
}

}  // namespace cleave::app
