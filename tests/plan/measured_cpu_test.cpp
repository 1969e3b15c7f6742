// Kernels of a step as counted by a plan, and their predicted time on a measured CPU.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/units.h"
#include "plan/bench/machine_rows.h"
#include "plan/measured_cpu.h"
#include "tests/plan/planned.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

constexpr double kProducts = 300, kPasses = 20, kUpdates = 40, kMessages = 5, kTokens = 340, kAttention = 60;

// Writes a report. The fastest rounds of all rows of a group have the same rate, with one exception,
// and other rounds are slower by a pseudorandom amount; omits rows with names that begin with `without`.
std::string report(const Scratch& scratch, const std::string& without = "nothing",
                   double narrow_head = kProducts, double short_attention = kAttention) {
  nlohmann::json rows = nlohmann::json::array();
  const auto add = [&](const std::string& name, double rate) {
    const double slow = rate / double(2 + std::hash<std::string>()(name) % 8);
    if (!name.starts_with(without))
      rows.push_back({{"name", name}, {"unit", "GB/s"}, {"median", slow}, {"low", slow / 2}, {"high", rate}});
  };
  for (const std::string type : {"fp32", "bf16"}) {
    for (const std::string product : {"qkv", "proj", "up", "down", "narrow", "narrow_head"})
      for (const std::string variant : {"forward", "dx", "dw"})
        add(fmt::format("matmul/{}/{}/{}", product, variant, type),
            product == "narrow_head" ? narrow_head : kProducts);
    for (const std::string pass : {"forward", "backward"}) {
      for (const int dim : {64, 128})
        for (const int length : {256, 1024})
          add(fmt::format("attention/{}/T{}/dim{}/{}", pass, length, dim, type),
              length == 256 ? short_attention : kAttention);
      for (const std::string kernel : {"gelu_tanh", "swiglu", "layer_norm", "rms_norm", "embedding"})
        add(fmt::format("{}/{}/{}", kernel, pass, type), kPasses);
    }
    for (const std::string kernel :
         {"dropout", "rotary", "bias_gradient", "cross_entropy", "sum_squares", "add"})
      add(fmt::format("{}/{}", kernel, type), kPasses);
    add("step/gpt2/" + type, kTokens);
  }
  add("adamw/100M/fp32", kUpdates);
  for (const std::string collective : {"all_reduce", "reduce_scatter", "all_gather"})
    add(fmt::format("comm/{}/64MiB", collective), kMessages);
  const nlohmann::json all{
      {"version", "1"}, {"cpu", "a CPU"}, {"instructions", "AVX"}, {"threads", 2}, {"rows", rows}};
  return scratch.write("report.json", all.dump());
}

plan::JobPlan plan_of(const bench::StepJob& job, int world = 1) {
  return testing::plan_for(job.config, world, [&](const model::Axes& axes) {
    return model::make_model(job.model, runtime::model_dtype(job.config), job.seq, "gpt2", axes);
  });
}

double sum_of(const plan::JobPlan& plan, std::string_view op, double kernels::Work::*what) {
  double sum = 0;
  for (const kernels::Work& w : plan.ranks.front().work)
    if (w.op == op) sum += w.*what;
  return sum;
}

TEST(Tally, CountsTheArithmeticAndTheBytesOfAStep) {
  const bench::StepJob job = bench::step_job(DType::fp32);
  const plan::JobPlan plan = plan_of(job);
  const double rows = 1024, width = 768, layers = 12, padded = 50304;
  const double in_blocks = layers * 12 * width * width;
  EXPECT_DOUBLE_EQ(sum_of(plan, "Matmul", &kernels::Work::flops), 6 * rows * (in_blocks + padded * width));
  // Causal pairs, with a multiplication and an addition each: two products forward, five backward.
  const double pairs = rows * (rows + 1) / 2;
  EXPECT_DOUBLE_EQ(sum_of(plan, "AttentionForward", &kernels::Work::flops), layers * 2 * 2 * pairs * width);
  EXPECT_DOUBLE_EQ(sum_of(plan, "AttentionBackward", &kernels::Work::flops), layers * 5 * 2 * pairs * width);
  EXPECT_DOUBLE_EQ(sum_of(plan, "ActivationForward", &kernels::Work::bytes), layers * rows * 4 * width * 8);
  // 16 bytes read and 12 written per parameter, including the padded rows of the table.
  const double params = double(plan.params) + (padded - 50257) * width;
  EXPECT_DOUBLE_EQ(sum_of(plan, "Adam", &kernels::Work::bytes), 28 * params);
}

// In elements of fp32, for a GPT-2 with a head of one chunk: memory read and written by products, attention,
// the embedding and the update, and the part of the passes in between that adjacent products do not already
// cover.
TEST(Tally, CountsTheLeastThatAStepPassesOver) {
  const double rows = 64, width = 32, layers = 3, vocab = 256;
  const bench::StepJob job = bench::step_job(DType::fp32);
  const plan::JobPlan plan = testing::plan_for(job.config, 1, [] {
    return model::make_model(model::kGpt2,
                             {.vocab = 256, .positions = 64, .width = 32, .layers = 3, .heads = 4},
                             DType::fp32, 64, "small");
  });
  const double x = rows * width;
  // Input, weights and output of qkv, proj, up and down; equal for both gradients.
  const double products = 3 * (12 * width * width + (4 + 2 + 5 + 5) * x);
  const double attention = (1 + 3) * x + (3 + 1 + 3 + 1) * x;
  const double gelu = 4 * x + 4 * x, biases = 9 * width;
  // Two norms, one with the residual; the sum after the block; both backward, with the residual's gradient.
  const double stream = x + 2 * x + x + 2 * 2 * x;
  const double head = 3 * (x + vocab * width + rows * vocab) + x + x;  // including the last norm
  const double embedding = 2 * x + 4 * x + 4 * x;
  const double update = 7 * (double(plan.params) + layers * 32);  // a block is padded to whole pieces of 64
  const plan::RankPlan& rank = plan.ranks.front();
  EXPECT_DOUBLE_EQ(rank.least_moved(), 4 * (layers * (products + attention + gelu + biases + stream) + head +
                                            embedding + update));
  // Additional traffic of the passes between products: per block GELU 12, norms 1 + 2 + 2 x 2, the sum 2 and
  // biases 9; the last norm 1 + 2; and the loss, which reads the logits and writes their gradient.
  double passes = 0;
  for (const std::string_view op : {"ActivationForward", "ActivationBackward", "LayerNormForward",
                                    "LayerNormBackward", "Add", "BiasGradient", "CrossEntropy"})
    passes += sum_of(plan, op, &kernels::Work::bytes) - sum_of(plan, op, &kernels::Work::least);
  EXPECT_DOUBLE_EQ(passes, 4 * (layers * (12 + 7 + 2 + 9) * x + 3 * x + 2 * rows * vocab));
  EXPECT_GE(rank.moved(), rank.least_moved() + passes);
}

TEST(Tally, IsInThePlansJson) {
  const plan::JobPlan plan = plan_of(bench::step_job(DType::bf16));
  const nlohmann::json kernels = nlohmann::json::parse(plan::to_json(plan)).at("ranks").at(0).at("kernels");
  double bytes = 0;
  for (const nlohmann::json& kernel : kernels)
    if (kernel.at("op") == "Adam") bytes += kernel.at("bytes").get<double>();
  // Reads and writes fp32 master and moments, reads a bf16 gradient, writes the bf16 weights.
  EXPECT_DOUBLE_EQ(bytes, 28 * (double(plan.params) + (50304 - 50257) * 768.0));
  const plan::RankPlan& rank = plan.ranks.front();
  const nlohmann::json json = nlohmann::json::parse(plan::to_json(plan)).at("ranks").at(0);
  EXPECT_EQ(json.at("bytes_moved").get<double>(), rank.moved());
  EXPECT_EQ(json.at("least_bytes_moved").get<double>(), rank.least_moved());
  double least = 0;
  for (const nlohmann::json& kernel : kernels) least += kernel.at("least_bytes").get<double>();
  EXPECT_EQ(least, rank.least_moved());
  EXPECT_NE(plan::format(plan).find(fmt::format("the minimum is {} ({:.0f} %)",
                                                format_bytes(int64_t(rank.least_moved())),
                                                100 * rank.least_moved() / rank.moved())),
            std::string::npos);
}

// Excludes the last block, because its backward follows directly.
TEST(Tally, CountsOfARecomputedBlockItsForwardTwice) {
  bench::StepJob job = bench::step_job(DType::bf16);
  const double once = sum_of(plan_of(job), "AttentionForward", &kernels::Work::flops);
  job.config.checkpointing.number = 12;
  EXPECT_DOUBLE_EQ(sum_of(plan_of(job), "AttentionForward", &kernels::Work::flops), once * 23 / 12);
}

TEST(MeasuredCpu, PredictsTheStepThatWasMeasured) {
  const Scratch scratch;
  const plan::MeasuredCpu cpu(report(scratch));
  for (const DType type : {DType::fp32, DType::bf16}) {
    const bench::StepJob job = bench::step_job(type);
    const plan::StepTime time = cpu.predict(job.config, plan_of(job));
    EXPECT_NEAR(time.total(), 1024 / kTokens, 1e-9);
    EXPECT_EQ(time.exchange, 0);
    EXPECT_EQ(time.says, "a CPU");
  }
}

// Twice the micro-batches: twice the passes and one update. With equal product rates everywhere, the parts of
// a step have the ratio of their work over their rates.
TEST(MeasuredCpu, AddsUpKernelsAtTheirRates) {
  const Scratch scratch;
  const plan::MeasuredCpu cpu(report(scratch));
  bench::StepJob job = bench::step_job(DType::fp32);
  const plan::JobPlan one = plan_of(job);
  const plan::StepTime step = cpu.predict(job.config, one);
  const double products = sum_of(one, "Matmul", &kernels::Work::flops) / (kProducts * 1e9);
  const double updates = sum_of(one, "Adam", &kernels::Work::bytes) / (kUpdates * 1e9);
  EXPECT_GT(step.compute / step.update, products / updates);  // plus attention and the passes
  EXPECT_LT(step.compute / step.update, 2 * products / updates);
  job.config.gradient_accumulation_steps = 2, job.config.train_batch_size = 2;
  const plan::StepTime twice = cpu.predict(job.config, plan_of(job));
  EXPECT_NEAR(twice.update, step.update, 1e-9);
  EXPECT_NEAR(twice.compute / step.compute, 2, 0.01);
}

// For a model 128 wide, only the three products of the head use the rate of their row.
TEST(MeasuredCpu, PredictsTheHeadOfANarrowModelByTheRowOfItsShape) {
  const Scratch scratch;
  bench::StepJob job = bench::step_job(DType::fp32);
  const double rows = 256, width = 128, vocab = 50304, slow = 75;
  const auto model = [&] {
    return model::make_model(
        model::kGpt2, {.vocab = int64_t(vocab), .positions = 256, .width = 128, .layers = 1, .heads = 4},
        DType::fp32, 256, "narrow");
  };
  const plan::JobPlan plan = testing::plan_for(job.config, 1, model);
  const plan::StepTime fast = plan::MeasuredCpu(report(scratch)).predict(job.config, plan);
  const plan::StepTime slower = plan::MeasuredCpu(report(scratch, "nothing", slow)).predict(job.config, plan);
  const double beyond = fast.update / (28 * double(plan.params) / (kUpdates * 1e9));
  EXPECT_NEAR(slower.compute - fast.compute,
              beyond * 6 * rows * width * vocab * (1 / slow - 1 / kProducts) / 1e9, 1e-9);
  EXPECT_EQ(slower.update, fast.update);
}

// The cost of a row beyond its pairs is, per FLOP, the reciprocal of the pairs of a row, (T + 1) / 2.
TEST(MeasuredCpu, PredictsAttentionOfEveryLengthFromTheRowsOfTwo) {
  const Scratch scratch;
  const double slow = 20, per_flop = 1 / slow - 1 / kAttention;
  const plan::MeasuredCpu level(report(scratch));
  const plan::MeasuredCpu steep(report(scratch, "nothing", kProducts, slow));
  for (const auto& [seq, share] :
       {std::pair{1024, 0.0}, {512, (1 / 513.0 - 1 / 1025.0) / (1 / 257.0 - 1 / 1025.0)}, {256, 1.0}}) {
    bench::StepJob job = bench::step_job(DType::fp32);
    job.seq = seq;
    const plan::JobPlan plan = plan_of(job);
    const plan::StepTime fast = level.predict(job.config, plan), slower = steep.predict(job.config, plan);
    const double beyond = fast.update / (sum_of(plan, "Adam", &kernels::Work::bytes) / (kUpdates * 1e9));
    const double flops = sum_of(plan, "AttentionForward", &kernels::Work::flops) +
                         sum_of(plan, "AttentionBackward", &kernels::Work::flops);
    EXPECT_NEAR(slower.compute - fast.compute, beyond * flops * share * per_flop / 1e9, 1e-9) << seq;
  }
}

// If a longer sequence is not faster, the rows give no information on the cost per row.
TEST(MeasuredCpu, TakesNoTimeOffLongAttentionIfTheShortRowsAreFaster) {
  const Scratch scratch;
  bench::StepJob job = bench::step_job(DType::fp32);
  const plan::JobPlan plan = plan_of(job);
  const double level = plan::MeasuredCpu(report(scratch)).predict(job.config, plan).compute;
  job.seq = 256;
  const plan::JobPlan brief = plan_of(job);
  const double by_longer = plan::MeasuredCpu(report(scratch)).predict(job.config, brief).compute;
  const plan::MeasuredCpu falling(report(scratch, "nothing", kProducts, 2 * kAttention));
  EXPECT_NEAR(falling.predict(job.config, plan).compute, level, 1e-9);
  EXPECT_NEAR(falling.predict(job.config, brief).compute, by_longer, 1e-9);
}

TEST(MeasuredCpu, SharesTheCoresAmongRanksAndAddsTheirMessages) {
  const Scratch scratch;
  const plan::MeasuredCpu cpu(report(scratch));
  bench::StepJob job = bench::step_job(DType::bf16);
  const plan::StepTime alone = cpu.predict(job.config, plan_of(job));
  job.config.zero.stage = 2, job.config.train_batch_size = 2;
  const plan::JobPlan plan = plan_of(job, 2);
  const plan::StepTime both = cpu.predict(job.config, plan);
  EXPECT_NEAR(both.compute / alone.compute, 2, 0.02);  // each has one sample and half of the cores
  EXPECT_NEAR(both.update / alone.update, 1, 0.02);    // and half of the state
  EXPECT_NEAR(both.exchange, double(plan.ranks.front().sent_total()) / (kMessages * 1e9), 1e-3);
}

// Products of blocks and the rounding of their operands have separate rows; the head's products stay in bf16.
TEST(MeasuredCpu, PredictsProductsInFp8ByTheirOwnRows) {
  const Scratch scratch;
  bench::StepJob job = bench::step_job(DType::bf16);
  job.config.fp8.scaling = config::Fp8Scaling::delayed;
  const plan::JobPlan plan = plan_of(job);
  const double rows = 1024, width = 768, in_blocks = 12.0 * 12 * width * width;
  EXPECT_DOUBLE_EQ(sum_of(plan, "Fp8Matmul", &kernels::Work::flops), 6 * rows * in_blocks);
  EXPECT_DOUBLE_EQ(sum_of(plan, "Matmul", &kernels::Work::flops), 6 * rows * 50304 * width);
  expect_error(Exit::usage, {"has no", "fp8/up/forward/bf16", "to_fp8/rows/bf16", "to_fp8/columns/bf16"},
               [&] { plan::MeasuredCpu(report(scratch)).predict(job.config, plan); });
}

TEST(MeasuredCpu, NamesTheRowsThatAReportLacks) {
  const Scratch scratch;
  const auto predict_without = [&](const std::string& rows, int world) {
    bench::StepJob job = bench::step_job(DType::bf16);
    job.config.train_batch_size = world;
    plan::MeasuredCpu(report(scratch, rows)).predict(job.config, plan_of(job, world));
  };
  expect_error(Exit::usage, {"report.json", "layer_norm/forward/fp32, layer_norm/forward/bf16"},
               [&] { predict_without("layer_norm/forward", 1); });
  expect_error(Exit::usage, {"adamw", "cleave bench matmul kernels optimizer step --json"},
               [&] { predict_without("adamw", 1); });
  expect_error(Exit::usage, {"has no comm/all_reduce/64MiB"}, [&] { predict_without("comm", 2); });
}

}  // namespace
}  // namespace cleave::testing
