#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/commands.h"
#include "app/parse.h"
#include "app/start/seen_environment.h"
#include "comm/nccl/nccl.h"
#include "core/build.h"
#include "core/cores.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/proc_value.h"
#include "core/units.h"
#include "core/version.h"
#include "device/cuda_library.h"
#include "device/device.h"
#include "kernels/matmul_ways.h"
#include "launcher/discovery.h"
#include "launcher/flight_report.h"
#include "launcher/network.h"
#include "offload/disk_queue.h"

namespace cleave::app {
namespace {

using Json = nlohmann::ordered_json;

int64_t meminfo_bytes(std::string_view name) {
  const std::string value = proc_value("/proc/meminfo", name);
  return value.empty() ? 0 : std::stoll(value) * 1024;
}

std::vector<std::string> instruction_sets() {
  std::istringstream flags(proc_value("/proc/cpuinfo", "flags"));
  std::vector<std::string> found;
  for (std::string flag; flags >> flag;)
    for (const char* known : {"avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16"})
      if (flag == known) found.push_back(flag);
  return found;
}

Json cpu_facts() {
  return {{"model", proc_value("/proc/cpuinfo", "model name")},
          {"instruction_sets", instruction_sets()},
          {"cores_usable", usable_cores().size()},
          {"cores_online", sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_bytes", meminfo_bytes("MemTotal")},
          {"memory_available_bytes", meminfo_bytes("MemAvailable")}};
}

// Returns the kernels used for products of two operands of each type.
Json matmul_facts() {
  Json list = Json::array();
  for (const kernels::MatmulWay& w : kernels::matmul_ways())
    list.push_back({{"type", name_of(w.type)}, {"way", w.way}, {"why", w.why}});
  return list;
}

Json thread_facts_of(const ThreadCount& count) { return {{"count", count.threads}, {"why", count.why}}; }

std::string cuda_version(int number) {
  return number > 0 ? fmt::format("{}.{}", number / 1000, number % 1000 / 10) : "";
}

// A CUDA library, and its use.
struct Library {
  std::string name, purpose, path, place, problem;
  int version = 0;
};

Library library_of(const CudaLibraryName& name, const char* purpose, std::string_view built) {
  if (built.empty())
    return {name.name, purpose, "", "",
            fmt::format("{}: not in this build; install its headers and build again", name.name)};
  const CudaLibrary l(name);
  return {name.name, purpose, l.path(), l.place(), l.problem(), l.version()};
}

// Loads the CUDA libraries that this build can use.
std::vector<Library> libraries() {
  if (!build::cuda) return {};
  const comm::NcclStatus nccl = comm::nccl_status();
  return {library_of(kCublasLt, "matrix products on a GPU", build::cublaslt_version),
          {kNccl.name, "collectives between GPUs without a copy through host memory", nccl.path, nccl.place,
           nccl.problem, nccl.version},
          library_of(kCudnn, "fused attention of cuDNN", build::cudnn_version)};
}

std::string version_of(const Library& l) { return l.version ? library_version_text(l.version) : ""; }

Json cuda_facts(const CudaStatus& status, const std::vector<Library>& libraries) {
  Json found = Json::object();
  for (const Library& l : libraries)
    found[l.name] = {
        {"version", version_of(l)}, {"path", l.path}, {"place", l.place}, {"problem", l.problem}};
  Json gpus = Json::array();
  for (const Gpu& g : status.gpus)
    gpus.push_back({{"name", g.name},
                    {"compute_capability", fmt::format("{}.{}", g.major, g.minor)},
                    {"multiprocessors", g.multiprocessors},
                    {"memory_bytes", g.memory_bytes},
                    {"memory_free_bytes", g.free_bytes},
                    {"reaches", g.reaches}});
  return {{"built", build::cuda},
          {"driver", cuda_version(status.driver)},
          {"runtime", cuda_version(status.runtime)},
          {"libraries", found},
          {"gpus", gpus}};
}

Json environment_facts() {
  Json set = Json::object();
  for (const EnvironmentVariable& v : environment_variables())
    if (const std::string value = environment_value(v.name); !value.empty()) set[std::string(v.name)] = value;
  return set;
}

// Returns how files on disk are moved: the library, and the reason if the kernel rejects it.
Json io_uring() {
  std::string problem;
  offload::make_uring_queue(1, problem);
  return {{"liburing", offload::liburing_version()}, {"problem", problem}};
}

// Returns facts of this host for jobs on several hosts.
Json network_facts() {
  const launcher::HostNetwork host = launcher::network_of();
  Json ports = Json::array(), problems = Json::array();
  for (const launcher::InfiniBandPort& p : host.ports)
    ports.push_back(
        {{"device", p.device}, {"port", p.port}, {"state", p.state}, {"rate", p.rate}, {"link", p.link}});
  for (const launcher::NetworkProblem& p :
       launcher::network_problems(host, launcher::environment_of_process()))
    problems.push_back(p.text);
  return {{"interfaces", host.interfaces},
          {"infiniband", ports},
          {"gpu_direct", host.gpu_direct},
          {"locked_memory_bytes", host.locked_memory ? Json(*host.locked_memory) : Json()},
          {"clock_synchronized", host.clock},
          {"problems", problems}};
}

void print_network(const Json& network) {
  for (const Json& p : network["infiniband"])
    std::printf("%-14s%s:%d %s, %s, %s\n", "InfiniBand", p["device"].get<std::string>().c_str(),
                p["port"].get<int>(), p["state"].get<std::string>().c_str(),
                p["rate"].get<std::string>().c_str(), p["link"].get<std::string>().c_str());
  for (const Json& problem : network["problems"])
    std::printf("%-14s%s\n", "several hosts", problem.get<std::string>().c_str());
}

// Lists missing features, their use, and how to get them.
Json missing(const CudaStatus& status, const std::vector<Library>& libraries) {
  Json list = Json::array();
  if (!status.problem.empty()) list.push_back({{"for", "training on a GPU"}, {"what", status.problem}});
  if (!build::gloo)
    list.push_back(
        {{"for", "ranks on several hosts"}, {"what", "Gloo; install libgloo-dev and build again"}});
  for (const Library& l : libraries)
    if (!l.problem.empty()) list.push_back({{"for", l.purpose}, {"what", l.problem}});
  if (const std::string problem = io_uring()["problem"]; !problem.empty())
    list.push_back(
        {{"for", "io_uring, the fastest disk access"},
         {"what", problem + (offload::liburing_version().empty() ? "; install liburing-dev and build again"
                                                                 : "; without it, threads read and write")}});
  return list;
}

void print(const Json& j) {
  auto text = [](const Json& value) {
    const std::string s = value.get<std::string>();
    return s.empty() ? std::string("none") : s;
  };
  auto bytes = [](const Json& value) { return format_bytes(value.get<int64_t>()); };
  auto row = [](const char* name, const std::string& value) {
    std::printf("%-14s%s\n", name, value.c_str());
  };
  const Json &c = j["cpu"], &g = j["cuda"];
  row("cleave", j["version"]);
  row("CPU", c["model"]);
  std::string sets;
  for (const Json& s : c["instruction_sets"]) sets += (sets.empty() ? "" : " ") + s.get<std::string>();
  row("instructions", sets);
  row("cores", fmt::format("{} usable of {}", c["cores_usable"].get<int>(), c["cores_online"].get<long>()));
  row("threads",
      fmt::format("{}: {}", j["threads"]["count"].get<int>(), j["threads"]["why"].get<std::string>()));
  for (const Json& w : j["matmul"])
    row(fmt::format("matmul {}", w["type"].get<std::string>()).c_str(),
        fmt::format("{}: {}", w["way"].get<std::string>(), w["why"].get<std::string>()));
  for (const auto& [name, value] : j["environment"].items())
    row("environment", name + "=" + value.get<std::string>());
  row("memory", bytes(c["memory_available_bytes"]) + " available of " + bytes(c["memory_bytes"]));
  std::string transports;
  for (const Json& t : j["transports"]) transports += (transports.empty() ? "" : ", ") + t.get<std::string>();
  row("transports", transports);
  row("disk", j["io_uring"]["problem"].get<std::string>().empty()
                  ? fmt::format("io_uring, liburing {}", text(j["io_uring"]["liburing"]))
                  : "threads");
  row("CUDA", g["built"] ? fmt::format("runtime {}, driver for {}", text(g["runtime"]), text(g["driver"]))
                         : "not built");
  for (const auto& [name, l] : g["libraries"].items())
    row(name.c_str(), l["problem"].get<std::string>().empty()
                          ? fmt::format("{}, {} ({})", text(l["version"]), text(l["path"]), text(l["place"]))
                          : "none");
  for (size_t i = 0; i < g["gpus"].size(); ++i) {
    const Json& gpu = g["gpus"][i];
    std::string reaches;
    for (size_t other = 0; other < gpu["reaches"].size(); ++other)
      if (other != i && gpu["reaches"][other].get<bool>()) reaches += fmt::format(" cuda:{}", other);
    row(fmt::format("cuda:{}", i).c_str(),
        fmt::format("{}, {} free of {}, compute {}, {} multiprocessors{}", text(gpu["name"]),
                    bytes(gpu["memory_free_bytes"]), bytes(gpu["memory_bytes"]),
                    text(gpu["compute_capability"]), gpu["multiprocessors"].get<int>(),
                    reaches.empty() ? "" : ", reaches" + reaches));
  }
  print_network(j["network"]);
  for (const Json& m : j["missing"])
    row("missing", fmt::format("{}: {}", m["for"].get<std::string>(), m["what"].get<std::string>()));
}

int report_flights(const std::string& folder, bool stacks) {
  std::fputs(launcher::flight_report(launcher::read_flight_records(folder), {}, stacks).text.c_str(), stdout);
  return 0;
}

}  // namespace

int run_report(const Arguments& arguments) {
  CLI::App app(
      "Prints CPU, GPUs, libraries and missing parts of this machine and build, or compares the flight "
      "records "
      "of a job's ranks.\nExample: cleave report --json, or cleave report runs/first/flight",
      "report");
  std::string folder;
  app.add_option(
      "FOLDER", folder,
      "folder with flight records (rank-N.json), which ranks write when a job hangs or crashes, and on "
      "SIGQUIT; prints the call of each rank, and the rank that differs");
  bool stacks = false;
  app.add_flag("--stacks", stacks, "print the stacks of all threads of FOLDER's ranks");
  bool json = false;
  app.add_flag("--json", json, "print one JSON object");
  bool env = false;
  app.add_flag("--env", env,
               "print the launcher and cluster variables of the environment instead, with secrets masked");
  if (!parse(app, arguments)) return 0;
  if (!folder.empty()) return report_flights(folder, stacks);
  require(!stacks, Exit::usage, "--stacks: needs the folder of flight records (got none); add it");
  if (env) return report_environment(json);
  const CudaStatus status = cuda_status(true);
  const std::vector<Library> of_cuda = libraries();
  std::vector<std::string> transports{"shm"};
  if (build::gloo) transports.push_back("gloo");
  const Json report{{"version", build::version},
                    {"cpu", cpu_facts()},
                    {"threads", thread_facts_of(threads_of_process())},
                    {"matmul", matmul_facts()},
                    {"environment", environment_facts()},
                    {"transports", transports},
                    {"network", network_facts()},
                    {"io_uring", io_uring()},
                    {"cuda", cuda_facts(status, of_cuda)},
                    {"missing", missing(status, of_cuda)}};
  if (json)
    std::printf("%s\n", report.dump(2).c_str());
  else
    print(report);
  return 0;
}

}  // namespace cleave::app
