#include "plan/measured_cpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "config_schema/ds_config.h"
#include "core/error.h"
#include "kernels/attention.h"
#include "model/transformer.h"
#include "plan/bench/machine_rows.h"

namespace cleave::plan {
namespace {

// Report row with the rate of an op that is bound by memory, or by arithmetic on its memory.
struct Passage {
  std::string_view op, row;
};
constexpr Passage kPassages[] = {{"ActivationForward", "gelu_tanh/forward"},
                                 {"ActivationBackward", "gelu_tanh/backward"},
                                 {"GatedForward", "swiglu/forward"},
                                 {"GatedBackward", "swiglu/backward"},
                                 {"Dropout", "dropout"},
                                 {"LayerNormForward", "layer_norm/forward"},
                                 {"LayerNormBackward", "layer_norm/backward"},
                                 {"RmsNormForward", "rms_norm/forward"},
                                 {"RmsNormBackward", "rms_norm/backward"},
                                 {"Rotary", "rotary"},
                                 {"BiasGradient", "bias_gradient"},
                                 {"EmbeddingForward", "embedding/forward"},
                                 {"EmbeddingBackward", "embedding/backward"},
                                 {"CrossEntropy", "cross_entropy"},
                                 {"CrossEntropyPart", "cross_entropy"},
                                 {"SumSquares", "sum_squares"}};
constexpr std::string_view kOther = "add";  // plain passes
constexpr std::string_view kProducts[] = {"qkv", "proj", "up", "down"};
constexpr std::string_view kVariants[] = {"forward", "dx", "dw"};  // Matmul::variant() modulo 3
constexpr std::string_view kShortProducts[] = {"narrow", "narrow_head"};
constexpr std::string_view kUpdates[] = {"Adam", "Sgd", "Lion", "Adagrad", "LambMoments", "LambStep"};

// Bytes per FLOP of causal attention over `positions` positions, for any heads.
double bytes_a_flop(bool backward, DType type, int64_t positions) {
  const auto rows = [&](int64_t width) { return Tensor(nullptr, type, {positions, width}); };
  const kernels::AttentionForward forward{.y = rows(1), .lse = {}, .qkv = rows(3), .seq = positions};
  const kernels::AttentionBackward back{.dqkv = rows(3), .dy = rows(1), .forward = forward};
  return backward ? back.traffic().bytes / back.flops() : forward.traffic().bytes / forward.flops();
}

bool updates(const kernels::Work& w) { return std::ranges::find(kUpdates, w.op) != std::end(kUpdates); }

}  // namespace

struct MeasuredCpu::Rates {
  std::string file;
  bench::Report report;
  std::vector<std::string> missing;
  std::map<DType, double> beyond;  // ratio of a measured step to the sum of its kernels, by the model's type

  // Returns units per second in the row's fastest, undisturbed round; 1 if the row is missing.
  double rate(const std::string& row, double unit) {
    const bench::Row* found = bench::row_of(report, row);
    if (!found && std::ranges::find(missing, row) == missing.end()) missing.push_back(row);
    return found ? found->rate.high * unit : 1;
  }
  void require_rows(const char* groups) {
    require(missing.empty(), Exit::usage, "{} has no {}; measure again: cleave bench {} --json > FILE", file,
            fmt::join(missing, ", "), groups);
  }

  double product_seconds(const kernels::Work& w, std::string_view type) {
    const size_t shape = size_t(w.variant) / std::size(kVariants);
    const std::string_view variant = kVariants[size_t(w.variant) % std::size(kVariants)];
    const auto slowness = [&](std::string_view product) {
      return 1 / rate(fmt::format("matmul/{}/{}/{}", product, variant, type), 1e9);
    };
    if (shape > 0) return w.flops * slowness(kShortProducts[shape - 1]);
    double sum = 0;
    for (const std::string_view product : kProducts) sum += slowness(product);
    return w.flops * sum / std::size(kProducts);
  }

  // Attention takes a fixed time per query-key pair, and one per row: reads, writes and half-masked diagonal
  // blocks. Both follow from the rows for two lengths.
  double attention_seconds(const kernels::Work& w, std::string_view type) {
    const bool backward = w.op == "AttentionBackward";
    const auto slowness = [&](int64_t seq) {
      return 1 / rate(fmt::format("attention/{}/T{}/dim{}/{}", backward ? "backward" : "forward", seq,
                                  w.variant > 96 ? 128 : 64, type),
                      1e9);
    };
    const double many = bytes_a_flop(backward, w.type, 256), few = bytes_a_flop(backward, w.type, 1024);
    const double byte = std::max(0.0, (slowness(256) - slowness(1024)) / (many - few));
    return w.flops * std::max(0.0, slowness(1024) - byte * few) + w.bytes * byte;
  }

  double seconds(const kernels::Work& w) {
    const std::string_view type = w.type == DType::fp32 ? "fp32" : "bf16";
    if (w.op == "Matmul") return product_seconds(w, type);
    if (w.op == "AttentionForward" || w.op == "AttentionBackward") return attention_seconds(w, type);
    if (w.op == "Fp8Matmul") return w.flops / rate("fp8/up/forward/bf16", 1e9);
    if (w.op == "ToFp8") return w.bytes / rate(w.variant ? "to_fp8/columns/bf16" : "to_fp8/rows/bf16", 1e9);
    if (updates(w)) return w.bytes / update_rate();
    const auto passage = std::ranges::find(kPassages, w.op, &Passage::op);
    return w.bytes /
           rate(fmt::format("{}/{}", passage == std::end(kPassages) ? kOther : passage->row, type), 1e9);
  }

  // Rate of AdamW over large arrays; the row's name contains the size.
  double update_rate() {
    for (const bench::Row& row : report.rows)
      if (row.name.starts_with("adamw/") && row.name.ends_with("M/fp32")) return row.rate.high * 1e9;
    return rate("adamw/.../fp32", 1e9);
  }

  // Returns the time of a rank on the whole machine.
  StepTime sum(const RankPlan& rank) {
    StepTime time;
    for (const kernels::Work& w : rank.work) (updates(w) ? time.update : time.compute) += seconds(w);
    return time;
  }

  double message_seconds(const GroupTraffic& traffic) {
    double sum = 0;
    for (int i = 0; i < comm::kCollectives; ++i) {
      const auto collective = comm::Collective(i);
      if (traffic.bytes[collective] == 0) continue;
      const bool reduces = collective == comm::Collective::all_reduce;
      const char* row = reduces                                          ? "all_reduce"
                        : collective == comm::Collective::reduce_scatter ? "reduce_scatter"
                                                                         : "all_gather";
      sum += double(traffic.bytes[collective]) / rate(fmt::format("comm/{}/64MiB", row), 1e9);
    }
    return sum;
  }

  double disk_seconds(const RankPlan& rank, int64_t micros) {
    const auto on_disk = [&](Category c) { return double(rank.memory.at(MemoryKind::disk, c)); };
    const double state = on_disk(Category::master) + on_disk(Category::optimizer_state);
    const double weights = on_disk(Category::weights);
    if (state + weights == 0) return 0;
    return state / rate("disk/read", 1e9) + state / rate("disk/write", 1e9) +
           2 * double(micros) * weights / rate("disk/read", 1e9);
  }
};

MeasuredCpu::MeasuredCpu(const std::string& file)
    : rates_(std::make_unique<Rates>(Rates{file, bench::read_report(file), {}, {}})) {
  Rates& r = *rates_;
  for (const DType type : {DType::fp32, DType::bf16}) {
    const bench::StepJob job = bench::step_job(type);
    const JobPlan plan =
        plan_job(job.config, 1, [&](comm::Communicator& ranks, const runtime::EngineOptions& options) {
          return std::make_unique<runtime::Engine>(
              job.config, model::make_model(job.model, type, job.seq, "gpt2"), ranks, options);
        });
    const StepTime kernels = r.sum(plan.ranks.front());
    r.beyond[type] = double(job.seq) / r.rate(bench::step_row_name(type), 1) / kernels.total();
  }
  r.require_rows("matmul kernels optimizer step");
}

MeasuredCpu::~MeasuredCpu() = default;

StepTime MeasuredCpu::predict(const config::DsConfig& config, const JobPlan& plan) const {
  Rates& r = *rates_;
  const int world = plan.mesh.size();
  const double slower =
      r.beyond.at(config.precision == config::Precision::fp32 ? DType::fp32 : DType::bf16) * world;
  StepTime slowest{.device = r.file, .says = r.report.cpu};
  for (const RankPlan& rank : plan.ranks) {
    StepTime time = r.sum(rank);
    time.compute *= slower, time.update *= slower;
    time.waiting = time.compute * plan.idle_share / std::max(0.01, 1 - plan.idle_share);
    for (const GroupTraffic& traffic : rank.sent) time.exchange += r.message_seconds(traffic);
    time.update = std::max(time.update, r.disk_seconds(rank, config.gradient_accumulation_steps) * world);
    if (time.total() > slowest.total()) {
      slowest.compute = time.compute, slowest.waiting = time.waiting;
      slowest.exchange = time.exchange, slowest.update = time.update;
    }
  }
  r.require_rows("matmul kernels optimizer comm disk step");
  return slowest;
}

}  // namespace cleave::plan
