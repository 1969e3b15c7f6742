#include "python/capi/job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "config_schema/wrong_variables.h"
#include "core/json.h"
#include "core/warnings.h"
#include "python/capi/call.h"
#include "python/capi/cleave_c.h"
#include "python/capi/engine.h"

namespace cleave::capi {
namespace {

using Json = nlohmann::json;

launcher::JobOptions options_of(const char* text) {
  launcher::JobOptions o;
  const Json given = parse_json(text && *text ? text : "{}", "the options of a job", Exit::usage);
  static const std::set<std::string> known = {"transport", "gpu_transport", "device",        "share_gpu",
                                              "threads",   "port_is_taken", "secret_by_pmi", "facts"};
  for (const auto& [key, value] : given.items())
    require(known.contains(key), Exit::usage, "the options of a job: unknown key \"{}\"", key);
  try {
    o.transport = given.value("transport", o.transport);
    o.gpu_transport = given.value("gpu_transport", o.gpu_transport);
    o.device = given.value("device", o.device);
    o.share_gpu = given.value("share_gpu", o.share_gpu);
    o.threads = given.value("threads", o.threads);
    o.port_is_taken = given.value("port_is_taken", o.port_is_taken);
    o.secret_by_pmi = given.value("secret_by_pmi", o.secret_by_pmi);
    const Json facts = given.value("facts", Json::object());
    for (const auto& [name, value] : facts.items()) o.facts.emplace_back(name, value.get<std::string>());
  } catch (const Json::exception& e) {
    fail(Exit::usage, "the options of a job: {}", without_number(e.what()));
  }
  return o;
}

std::string facts_of(const cleave_job& j) {
  const comm::RankInfo& info = j.job.info();
  Json facts{{"rank", info.rank},
             {"world", info.world},
             {"local_rank", info.local_rank},
             {"local_size", info.local_size},
             {"node_rank", info.node_rank},
             {"nodes", info.nodes},
             {"master_addr", info.master_addr},
             {"master_port", info.master_port},
             {"launched_by", info.launched_by},
             {"device", name_of(j.job.device())},
             {"cuda", j.job.cuda_version()},
             {"threads", j.job.thread_count()},
             {"python_stacks", j.job.python_stacks()},
             {"records_on_quit", j.job.records_on_quit()}};
  if (j.world) facts["transport"] = j.job.transport();
  return facts.dump();
}

// Runs a collective on the call's own stream and waits for it.
template <class Enqueue>
void on_host(const Enqueue& enqueue) {
  Stream stream;
  enqueue(stream);
  stream.synchronize();
}

}  // namespace
}  // namespace cleave::capi

using namespace cleave;
using capi::call, capi::given, capi::handed_over;

int cleave_job_open(const char* options, cleave_job** job) {
  return call([&] {
    config::refuse_wrong_variables(environ);
    given(job, "job") = new cleave_job(capi::options_of(options));
  });
}

int cleave_job_facts(cleave_job* job, char** facts) {
  return call([&] { given(facts, "facts") = handed_over(capi::facts_of(given(job, "job"))); });
}

int cleave_job_connect(cleave_job* job, double timeout_s) {
  return call([&] {
    require(timeout_s >= 1 && std::isfinite(timeout_s), Exit::usage,
            "communication deadline: {} s is too short; expected at least 1", timeout_s);
    cleave_job& j = given(job, "job");
    CHECK(!j.world, "the job is connected already");
    config::DsConfig config;
    config.comm_timeout_s = j.timeout_s = int64_t(std::ceil(timeout_s));
    j.world = &j.job.connect(config);
  });
}

int cleave_job_close(cleave_job* job, const char* reason, int32_t exit_code) {
  return call([&] {
    const std::unique_ptr<cleave_job> j(&given(job, "job"));
    // Engines need the job, so those that are left stay until the process ends.
    static std::vector<std::shared_ptr<cleave_engine>>& left =
        *new std::vector<std::shared_ptr<cleave_engine>>;
    for (const std::weak_ptr<cleave_engine>& e : j->engines) {
      left.push_back(e.lock());
      if (left.back()) left.back()->reports->close(reason ? nullptr : &left.back()->base());
    }
    if (j->world) j->job.end(reason ? reason : "", exit_code);
  });
}

int cleave_job_catch_signals(cleave_job* job) {
  return call([&] { given(job, "job").job.catch_signals(launcher::Job::WhenAsked::decides); });
}

int cleave_job_stop_requested(cleave_job* job, int32_t* requested) {
  return call([&] {
    given(job, "job").connected();
    given(requested, "requested") = job->job.any(launcher::Job::stop_requested());
  });
}

int cleave_job_broadcast(cleave_job* job, void* data, int64_t bytes, int root) {
  return call([&] {
    capi::on_host([&](Stream& stream) {
      given(job, "job")
          .connected()
          .broadcast(Tensor(data, DType::uint8, {bytes}, MemoryKind::host), root, stream,
                     {.what = "a value of one rank"});
    });
  });
}

int cleave_job_sum(cleave_job* job, double* values, int64_t count) {
  return call([&] {
    capi::on_host([&](Stream& stream) {
      given(job, "job")
          .connected()
          .all_reduce(Tensor(values, DType::fp64, {count}, MemoryKind::host), stream,
                      {.what = "values of all ranks"});
    });
  });
}

int cleave_job_barrier(cleave_job* job) {
  return call([&] {
    capi::on_host(
        [&](Stream& stream) { given(job, "job").connected().barrier(stream, {.what = "a barrier"}); });
  });
}

// Warns that ranks that already met keep their deadline.
static std::string warning_of_deadline(const cleave_job& job, int64_t asked, const std::string& name) {
  if (!job.world || asked == job.timeout_s || asked == config::DsConfig{}.comm_timeout_s) return "";
  return fmt::format(
      "warning: {}: cleave.comm_timeout_s is {}, but the ranks met before with a deadline of {} s, which "
      "stays: "
      "give init_distributed() this timeout\n",
      name, asked, job.timeout_s);
}

// Passes warnings to the outputs of engines; each is a line.
static void note_warnings(const std::string& lines) {
  constexpr std::string_view kWarning = "warning: ";
  std::istringstream all(lines);
  for (std::string line; std::getline(all, line);)
    if (line.starts_with(kWarning)) note_warning(line.substr(kWarning.size()));
}

int cleave_note_warning(const char* text) {
  return call([&] { note_warning(&given(text, "text")); });
}

int cleave_config_json(const char* text, const char* name, char** json) {
  return call([&] {
    const std::string read = config::read_ds_config(&given(text, "text"), &given(name, "name"), {}).text;
    given(json, "json") = handed_over(json_or_nothing(read).is_discarded() ? "" : read);
  });
}

int cleave_job_read_config(cleave_job* job, const char* text, const char* name, const char* sections,
                           char** read) {
  return call([&] {
    config::ReadOptions options = given(job, "job").job.read_options();
    options.front = config::Front::scripts;
    options.sections = &given(sections, "sections");
    const config::ReadResult result =
        config::read_ds_config(&given(text, "text"), &given(name, "name"), options);
    std::string problems = config::format(result.problems);
    require(result.ok(), Exit::usage, "{}: has errors:\n{}", name, problems);
    const std::string late = warning_of_deadline(*job, result.config.comm_timeout_s, name);
    problems += late;
    if (job->job.first()) note_warnings(problems);
    nlohmann::json values = nlohmann::json::object();
    for (const config::Note& note : result.notes) {
      nlohmann::json value = json_or_nothing(note.value);
      const std::string& key = note.key.empty() ? note.path : note.key;
      values[key] = value.is_discarded() ? nlohmann::json(note.value) : std::move(value);
    }
    given(read, "read") =
        handed_over(nlohmann::json{{"values", std::move(values)}, {"warnings", problems}}.dump());
  });
}
