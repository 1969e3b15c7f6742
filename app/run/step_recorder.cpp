#include "app/run/step_recorder.h"

#include <algorithm>

#include "app/run/recorded_config.h"
#include "core/proc_value.h"
#include "core/version.h"
#include "core/warnings.h"
#include "kernels/matmul_ways.h"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json json_of(const runtime::StoredBytes& stored) {
  return {stored.at, stored.bytes, fmt::format("{:016x}", stored.sum)};
}

fs::path root_of(const std::string& output) { return fs::path(output) / "replay"; }

}  // namespace

json computing_facts(const launcher::Job& job) {
  json facts{{"version", build::version},
             {"CPU", proc_value("/proc/cpuinfo", "model name")},
             {"products", kernels::describe_matmul_ways()},
             {"threads", job.thread_count()}};
  if (job.device().is_cuda()) {
    const Gpu gpu = cuda_gpu(job.device());
    facts["GPU"] = fmt::format("{} with {} multiprocessors", gpu.name, gpu.multiprocessors);
    facts["CUDA"] = job.cuda_version();
  } else {
    facts["GPU"] = "none";
  }
  return facts;
}

StepRecorder::StepRecorder(const RunOptions& wanted, const config::ReadResult& read, launcher::Job& job,
                           comm::Communicator& ranks, Say say)
    : wanted_(wanted),
      read_(read),
      rule_(read.config.record_steps),
      job_(job),
      ranks_(ranks),
      say_(std::move(say)),
      mine_(rule_.records(ranks.rank())) {
  if (!mine_) return;
  recorder_ = std::make_unique<runtime::CallRecorder>(job.device());
  tapped_ = comm::tapped_communicator(ranks, *recorder_);
  recorder_->record_in_memory();
}

void StepRecorder::engine_is_made(const json& model) {
  if (!mine_) return;
  record_.setup = recorder_->stop();
  setup_bytes_ = recorder_->in_memory();
  record_.facts = {{"rank", ranks_.rank()},
                   {"seed", wanted_.seed},
                   {"run", model},
                   {"config", recorded_config(read_, ranks_.size())},
                   {"computing", computing_facts(job_)}};
}

void StepRecorder::try_all(const std::function<void()>& body) {
  std::string failure;
  try {
    if (mine_ && whole_) body();
  } catch (const std::exception& e) {
    failure = e.what();
    warn("{}: the step is not recorded: {}", root_of(wanted_.output).string(), failure);
  }
  whole_ = !job_.any(!failure.empty()) && whole_;
}

json StepRecorder::stored(const Batch& batch) {
  json j{{"valid_targets", batch.valid_targets}, {"first_sample", batch.position.first_sample}};
  for (const auto& [name, t] :
       {std::pair{"input", batch.input}, {"targets", batch.targets}, {"documents", batch.documents}})
    if (t.defined()) j[name] = json_of(recorder_->add(t.raw(), t.bytes()));
  return j;
}

void StepRecorder::begin(runtime::Engine& engine, std::span<const Batch> batches) {
  const int64_t step = engine.step() + 1;
  folder_ = root_of(wanted_.output) / fmt::format(".step-{}.tmp", step);
  whole_ = true;
  if (job_.first()) remove_unfinished();
  try_all([] {});  // after the removal
  const fs::path own = folder_ / fmt::format("rank-{}", ranks_.rank());
  try_all([&] {
    fs::create_directories(own);
    engine.save_own_state(own.string(), runtime::StepRecord::kState);
    recorder_->record_in_file(own / runtime::StepRecord::kCalls);
    recorder_->add(setup_bytes_.data(), int64_t(setup_bytes_.size()));
    json list = json::array();
    for (const Batch& batch : batches) list.push_back(stored(batch));
    record_.facts["step"] = step, record_.facts["batches"] = std::move(list);
  });
  // The working copies follow from the recorded state, so their calls are a part of the record.
  engine.publish_parameters();
}

void StepRecorder::end(runtime::Engine& engine, const runtime::StepResult& result) {
  engine.synchronize();
  try_all([&] {
    record_.step = recorder_->stop();
    record_.after = engine.own_state_sums();
    record_.facts["result"] = {{"loss", result.loss}, {"grad_norm", result.grad_norm}};
    runtime::write_record(folder_ / fmt::format("rank-{}", ranks_.rank()), record_);
  });
  if (mine_) recorder_->drop();
  job_.together(Exit::checkpoint, [&] {
    if (!job_.first()) return;
    std::error_code error;
    if (!whole_) return void(fs::remove_all(folder_, error));
    const fs::path to = root_of(wanted_.output) / fmt::format("step-{}", result.step);
    fs::remove_all(to, error);
    fs::rename(folder_, to, error);
    if (error) return warn("{}: the step is not recorded: {}", to.string(), error.message());
    remove_old();
    say_(fmt::format("recorded {}; compute it again with cleave replay {} --step {} --rank {}", to.string(),
                     wanted_.output, result.step,
                     rule_.ranks.empty() ? "0" : rule_.ranks.substr(0, rule_.ranks.find(','))));
  });
}

// Leftovers of a run that ended within a step.
void StepRecorder::remove_unfinished() const {
  std::error_code error;
  std::vector<fs::path> found;
  for (const fs::directory_entry& e : fs::directory_iterator(root_of(wanted_.output), error))
    if (e.path().filename().string().starts_with(".step-")) found.push_back(e.path());
  for (const fs::path& path : found) fs::remove_all(path, error);
}

void StepRecorder::remove_old() const {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code error;
  for (const fs::directory_entry& e : fs::directory_iterator(root_of(wanted_.output), error)) {
    const std::string name = e.path().filename().string();
    if (name.starts_with("step-") && name.find_first_not_of("0123456789", 5) == std::string::npos)
      found.emplace_back(std::stoll(name.substr(5)), e.path());
  }
  std::ranges::sort(found, std::greater());
  for (size_t i = size_t(rule_.keep); i < found.size(); ++i) fs::remove_all(found[i].second, error);
}

}  // namespace cleave::app
