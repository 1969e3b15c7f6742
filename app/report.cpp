#include "app/report.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "config_schema/summary.h"
#include "core/units.h"
#include "device/workspace.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "monitor/csv_monitor.h"
#include "monitor/metrics.h"
#include "monitor/progress.h"
#include "monitor/tensorboard.h"

namespace cleave {
namespace {

using nlohmann::json;

int columns_of_terminal() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

json as_json(const MemoryTable& t) {
  json out = json::object();
  for (int k = 0; k < kMemoryKinds; ++k)
    for (int c = 0; c < kCategories; ++c)
      if (const int64_t bytes = t.at(MemoryKind(k), Category(c)))
        out[std::string(name_of(MemoryKind(k)))][std::string(name_of(Category(c)))] = bytes;
  return out;
}

// What this rank reaches in a square matrix product, in fp32 on its cores and in the model's type on a GPU:
// the peak that mfu is a share of.
double matmul_flops_per_s(Device device, DType model_type) {
  const bool gpu = device.is_cuda();
  const int64_t n = gpu ? 4096 : 512;
  const DType type = gpu ? model_type : DType::fp32;
  Memory memory({}, Memory::Mode::real, device);
  const Workspace space = allocate_workspace(memory, kKernelScratch);
  Stream stream(device);
  space.lend_to(stream);
  auto square = [&](DType t) {
    return memory.allocate(MemoryKind::device, Category::staging, t, {n, n}, "peak");
  };
  const Buffer a = square(type), b = square(type), c = square(type);
  {  // random: a GPU multiplies equal numbers faster than those of training
    const Buffer values = square(DType::fp32);
    uint64_t key = 0;
    for (const Buffer* x : {&a, &b}) {
      launch(RandomFill{.y = values, .philox = {++key, 0}}, stream);
      launch(Cast{.y = *x, .x = values}, stream);
    }
    stream.synchronize();
  }
  const Matmul product{.c = c, .a = a, .b = b, .bias = {}};
  const int times = gpu ? 10 : 1;  // so that launching does not show
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    stream.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int k = 0; k < times; ++k) launch(product, stream);
    stream.synchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, times * product.flops() / seconds);
  }
  return best;
}

}  // namespace

struct Report::Sinks {
  Sinks(const TrainOptions& o, const ReadResult& c) : options(o), config(c) {}

  const TrainOptions& options;
  const ReadResult& config;
  std::optional<Progress> progress;
  std::optional<MetricsFile> metrics;
  std::optional<TensorBoard> tensorboard;
  std::optional<CsvMonitor> csv;
  CommBytes sent;
  int ranks = 1;
  double peak = 0;
  int64_t first_step = 0;
};

namespace {

std::string model_line(const Engine& engine, const std::string& transport) {
  const DsConfig& c = engine.config();
  const MeshShape& mesh = engine.mesh();
  return fmt::format(
      "model: {}, {} parameters; {}, {}; batch {} = {} x {} accumulation x {} data-parallel ranks{}{}",
      engine.model().name, format_count(engine.params()), name_of(engine.device()), transport,
      c.train_batch_size, c.train_micro_batch_size_per_gpu, c.gradient_accumulation_steps, mesh.data,
      mesh.sequence > 1 ? fmt::format("; sequences cut over {} ranks", mesh.sequence) : "",
      mesh.tensor > 1 ? fmt::format("; layers cut over {} ranks", mesh.tensor) : "");
}

std::string memory_lines(const Engine& engine, bool whole) {
  const MemoryTable& planned = engine.memory_planned();
  std::string text =
      engine.mesh().pipe > 1 ? "memory of rank 0, as planned:" : "memory of a rank, as planned:";
  if (whole) {
    std::string table = format(planned);
    table.pop_back();
    return text + '\n' + table;
  }
  const char* separator = " ";
  for (int k = 0; k < kMemoryKinds; ++k)
    if (const int64_t bytes = planned.total(MemoryKind(k)); bytes > 0)
      text += fmt::format("{}{} {}", separator, name_of(MemoryKind(k)), format_bytes(bytes)),
          separator = ", ";
  return text;
}

// One, two or three sentences about a run that has something to say of itself.
std::vector<std::string> remarks(const Engine& engine) {
  const DsConfig& c = engine.config();
  std::vector<std::string> out = engine.notes().lines();
  if (c.tf32 && !engine.device().is_cuda())
    out.emplace_back("cleave.tf32 changes nothing: this rank computes on the CPU");
  if (c.zero.stage >= 2 && c.gradient_accumulation_steps > 1 &&
      engine.mesh().data * engine.mesh().sequence > 1)
    out.push_back(fmt::format(
        "ZeRO stage {} sums gradients after each of the {} micro-batches: {} times the bytes of stage 1",
        c.zero.stage, c.gradient_accumulation_steps, c.gradient_accumulation_steps));
  return out;
}

// What a run says first: one line when quiet, every key and the whole table when verbose, else at most twelve
// lines with what differs from the defaults.
std::vector<std::string> start_lines(const Engine& engine, const std::string& transport,
                                     const std::string& threads, const TrainOptions& options,
                                     const ReadResult& config) {
  std::vector<std::string> out{model_line(engine, transport)};
  if (options.quiet) return out;
  out.push_back(fmt::format("threads: {} a rank", threads));
  for (std::string& about : update_lines(config)) out.push_back(std::move(about));
  if (options.verbose)
    for (const Note& n : config.notes)
      out.push_back(fmt::format("config: {} = {} ({}): {}", n.path, n.value, n.origin, n.meaning));
  else if (std::string differs = differences_line(config); !differs.empty())
    out.push_back(std::move(differs));
  out.push_back(memory_lines(engine, options.verbose));
  for (const std::string& remark : remarks(engine)) {
    std::istringstream lines(remark);
    for (std::string one; std::getline(lines, one);) out.push_back(one);
  }
  constexpr size_t kMost = 12;
  if (options.verbose || out.size() <= kMost) return out;
  const size_t hidden = out.size() - kMost + 1;
  out.resize(kMost - 1);
  out.push_back(fmt::format("and {} more lines, which --verbose shows", hidden));
  return out;
}

}  // namespace

Report::Report(bool first, const TrainOptions& options, const ReadResult& config) {
  if (!first) return;
  sinks_ = std::make_unique<Sinks>(options, config);
  const TensorBoardConfig& board = config.config.tensorboard;
  if (board.enabled) {
    const std::string base = board.output_path.empty() ? "./runs" : board.output_path;
    sinks_->tensorboard.emplace((std::filesystem::path(base) / board.job_name).string());
  }
  const CsvConfig& csv = config.config.csv_monitor;
  if (csv.enabled) sinks_->csv.emplace(csv.output_path, csv.job_name);
}

Report::~Report() = default;

void Report::start(const Engine& engine, int ranks, const std::string& transport,
                   const std::string& threads) {
  if (!sinks_) return;
  Sinks& s = *sinks_;
  s.ranks = ranks, s.sent = engine.comm_bytes(), s.first_step = engine.step();
  s.peak = matmul_flops_per_s(engine.device(), engine.model().dtype);
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  s.progress.emplace(ProgressOptions{.out = stdout,
                                     .total = s.options.steps,
                                     .done = engine.step(),
                                     .is_terminal = terminal,
                                     .columns = columns_of_terminal()});
  for (const std::string& about : start_lines(engine, transport, threads, s.options, s.config)) line(about);
  if (s.options.metrics.empty()) return;
  s.metrics.emplace(s.options.metrics, engine.step() > 0);
  json resolved = json::object();
  for (const Note& n : s.config.notes)
    if (!n.path.empty()) resolved[n.path] = json::accept(n.value) ? json::parse(n.value) : json(n.value);
  s.metrics->start(json{{"config", resolved},
                        {"world_size", ranks},
                        {"mesh",
                         {{"pipe", engine.mesh().pipe},
                          {"data", engine.mesh().data},
                          {"sequence", engine.mesh().sequence},
                          {"tensor", engine.mesh().tensor}}},
                        {"pipeline", engine.notes().pipeline},
                        {"transport", transport},
                        {"model", engine.model().name},
                        {"parameters", engine.params()},
                        {"step", engine.step()},
                        {"memory_planned", as_json(engine.memory_planned())}}
                       .dump());
}

void Report::step(const Engine& engine, const StepResult& r, double seconds,
                  const std::optional<PhaseTimes>& times) {
  if (!sinks_) return;
  Sinks& s = *sinks_;
  const DsConfig& c = engine.config();
  StepMetrics m{.step = r.step,
                .loss = r.loss,
                .lr = r.lr,
                .grad_norm = r.grad_norm,
                .loss_scale = r.loss_scale,
                .skipped = r.skipped,
                .skipped_total = r.skipped_total};
  m.tokens = c.train_batch_size * engine.model().rows_per_sample * engine.model().parts;
  m.tokens_per_s = double(m.tokens) / seconds, m.step_ms = seconds * 1e3;
  m.mfu = double(c.train_batch_size) * engine.model().flops_per_sample / (seconds * s.peak * s.ranks);
  const CommBytes sent = engine.comm_bytes();
  for (int i = 0; i < kCollectives; ++i)
    if (const int64_t bytes = sent[Collective(i)] - s.sent[Collective(i)])
      m.comm_bytes[std::string(name_of(Collective(i)))] = bytes;
  s.sent = sent;
  for (int p = 0; times && p < kPhases; ++p) m.times_ms[std::string(name_of(Phase(p)))] = (*times)[size_t(p)];
  if (r.skipped)
    line(fmt::format("step {}: gradients overflow at loss scale {:g}; skipped ({} so far)", r.step,
                     r.loss_scale, r.skipped_total));
  s.progress->step(r.step, r.loss, m.tokens_per_s);
  if (c.steps_per_print > 0 && r.step % c.steps_per_print == 0)
    line(fmt::format("step={}, skipped={}, lr=[{:g}], loss={:.6g}", r.step, r.skipped_total, r.lr, r.loss));
  if (s.metrics) s.metrics->step(m);
  if (!s.tensorboard && !s.csv) return;
  for (const Scalar& scalar : scalars_of(m)) {
    if (s.tensorboard) s.tensorboard->scalar(scalar.tag, scalar.value, r.step * c.train_batch_size);
    if (s.csv) s.csv->scalar(scalar.tag, scalar.value, r.step * c.train_batch_size);
  }
}

void Report::evaluation(int64_t step, double loss) {
  if (!sinks_) return;
  line(fmt::format("step {}: validation loss {:.6g}", step, loss));
  if (sinks_->metrics) sinks_->metrics->evaluation(step, loss);
  const int64_t samples = step * sinks_->config.config.train_batch_size;
  if (sinks_->tensorboard) sinks_->tensorboard->scalar("Train/Samples/eval_loss", loss, samples);
  if (sinks_->csv) sinks_->csv->scalar("Train/Samples/eval_loss", loss, samples);
}

void Report::line(const std::string& text) {
  if (!sinks_) return;
  if (sinks_->progress) {
    sinks_->progress->line(text);
  } else {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
}

void Report::end(const Engine& engine) {
  if (!sinks_) return;
  if (sinks_->progress) sinks_->progress->finish();
  if (sinks_->metrics)
    sinks_->metrics->end(
        json{{"step", engine.step()}, {"memory_peak", as_json(engine.memory_peak())}}.dump());
}

}  // namespace cleave
