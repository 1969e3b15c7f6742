#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "app/commands.h"
#include "app/parse.h"
#include "bench/kernel_rows.h"
#include "bench/limits.h"
#include "bench/machine_rows.h"
#include "bench/report.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/proc_value.h"
#include "core/version.h"
#include "device/team.h"
#include "kernels/cpu/bf16_products.h"
#include "kernels/cpu/register_loops.h"
#include "kernels/matmul_ways.h"

namespace cleave::app {
namespace {

using bench::KernelRow;
using bench::Limits;
using bench::Row;

const std::vector<std::string> kGroups = {"matmul", "kernels", "optimizer", "comm", "disk", "step"};
constexpr int64_t kMillions = 32;  // parameters that the optimizers update

struct BenchOptions {
  std::vector<std::string> groups;
  std::vector<std::string> filter;
  std::string compare, folder = ".";
  int64_t threads = 0, ranks = 2;
  double seconds = 0.3;
  bool json = false;

  bool has(std::string_view group) const { return groups.empty() || std::ranges::count(groups, group) > 0; }
  bool wants(std::string_view kernel) const {
    return filter.empty() || std::ranges::any_of(filter, [&](const std::string& word) {
             return kernel.find(word) != std::string_view::npos;
           });
  }
};

bool parse_options(BenchOptions& o, const Arguments& arguments) {
  CLI::App app(
      fmt::format(
          "What this machine reaches, beside the most that it can: {}; without words all of them.\n"
          "Limits of arithmetic are loops of multiply-adds on registers, those of memory plain loops over "
          "large arrays.\n"
          "Example: cleave bench --json > before.json, and another day cleave bench --compare before.json",
          fmt::join(kGroups, ", ")),
      "bench");
  app.add_option("group", o.groups, "what is measured")->check(one_of(kGroups));
  app.add_flag("--json", o.json, "one JSON object on stdout; the table then goes to stderr");
  app.add_option("--compare", o.compare,
                 "names the rows that got slower than in this file, which --json made");
  app.add_option("--filter", o.filter,
                 "only kernels with this word in their names; may be given several times")
      ->allow_extra_args(false);
  app.add_option("--folder", o.folder, "where the disk is measured, with a file of 1 GiB")
      ->capture_default_str();
  app.add_option("--ranks", o.ranks, "processes of comm")->capture_default_str()->check(integer(2, 256));
  app.add_option("--threads", o.threads, "of this process; 0: one for each core, or OMP_NUM_THREADS")
      ->capture_default_str()
      ->check(integer(0, kMostThreads));
  app.add_option("--seconds", o.seconds, "that each kernel is repeated for")
      ->capture_default_str()
      ->check(number(0));
  return parse(app, arguments);
}

// Rows as they come: a line each, and kept.
class Rows {
 public:
  Rows(bench::Report& report, FILE* out) : report_(report), out_(out) {
    std::fprintf(out_, "%s\n", bench::format_head().c_str());
  }
  void add(Row row) {
    std::fprintf(out_, "%s\n", bench::format(row).c_str());
    std::fflush(out_);
    report_.rows.push_back(std::move(row));
  }
  void add(std::vector<Row> rows) {
    for (Row& row : rows) add(std::move(row));
  }
  void limit(const std::string& name, const char* unit, double value) {
    add({.name = "limit/" + name, .unit = unit, .rate = {value, value, value}});
  }

 private:
  bench::Report& report_;
  FILE* out_;
};

void add_kernel(Rows& rows, const KernelRow& kernel, const Limits& limits, double seconds) {
  bench::Operands operands{Device{}};
  const bench::Work work = kernel.prepare(operands);
  if (work.flops == 0)
    return rows.add({.name = kernel.name,
                     .unit = "GB/s",
                     .rate = bench::measure(work.run, work.bytes * 1e-9, seconds),
                     .limit = (work.reads_only ? limits.read_bytes : limits.update_bytes) * 1e-9,
                     .limited_by = work.reads_only ? "a plain sum" : "a plain update"});
  Row row{.name = kernel.name,
          .unit = "GFLOP/s",
          .rate = bench::measure(work.run, work.flops * 1e-9, seconds),
          .limit = limits.flops(kernel.type) * 1e-9,
          .limited_by = "on registers"};
  // Where bf16 is the library's already, the row has its rate.
  if (!kernel.by_onednn ||
      (kernel.type == DType::bf16 && kernels::cpu::bf16_products().way == kernels::cpu::Bf16Way::onednn))
    return rows.add(std::move(row));
  bench::Operands others{Device{}};
  Row theirs = row;
  theirs.name += "/oneDNN",
      theirs.rate = bench::measure(kernel.by_onednn(others).run, work.flops * 1e-9, seconds);
  if (theirs.rate.high > row.limit)
    row.limit = theirs.limit = theirs.rate.high, row.limited_by = theirs.limited_by = "oneDNN's best";
  rows.add(std::move(row));
  rows.add(std::move(theirs));
}

void measure_arithmetic(const BenchOptions& o, Rows& rows) {
  const Limits limits = bench::measure_limits(Device{});
  rows.limit("fp32", "GFLOP/s", limits.fp32 * 1e-9);
  rows.limit(fmt::format("bf16/{}", kernels::cpu::bf16_loop().instruction), "GFLOP/s", limits.bf16 * 1e-9);
  rows.limit("read", "GB/s", limits.read_bytes * 1e-9);
  rows.limit("update", "GB/s", limits.update_bytes * 1e-9);
  const auto add = [&](const char* group, const std::vector<KernelRow>& kernels) {
    for (const KernelRow& kernel : kernels)
      if (o.has(group) && o.wants(kernel.name)) add_kernel(rows, kernel, limits, o.seconds);
  };
  add("matmul", bench::product_rows(Device{}));
  add("kernels", bench::layer_rows(Device{}));
  add("optimizer", bench::update_rows(Device{}, kMillions));
  if (o.has("step"))
    for (const DType type : {DType::fp32, DType::bf16}) rows.add(bench::step_row(type, limits));
}

}  // namespace

int run_bench(const Arguments& arguments) {
  BenchOptions o;
  if (!parse_options(o, arguments)) return 0;
  const auto was = o.compare.empty() ? std::nullopt : std::optional(bench::read_report(o.compare));
  bench::Report report{.version = std::string(build::version),
                       .cpu = proc_value("/proc/cpuinfo", "model name"),
                       .instructions = kernels::describe_matmul_ways(),
                       .threads = threads_of_process(int(o.threads)).threads,
                       .rows = {}};
  FILE* const out = o.json ? stderr : stdout;
  std::fprintf(out, "%s, %d threads; %s\n", report.cpu.c_str(), report.threads, report.instructions.c_str());
  Rows rows(report, out);
  if (o.has("comm")) rows.add(bench::comm_rows(int(o.ranks)));  // before there are threads
  set_team_threads(report.threads);
  if (o.has("disk")) rows.add(bench::disk_rows(o.folder));
  if (o.has("matmul") || o.has("kernels") || o.has("optimizer") || o.has("step")) measure_arithmetic(o, rows);
  if (o.json) std::printf("%s\n", bench::to_json(report).c_str());
  if (was) std::fprintf(out, "%s\n", bench::format_comparison(*was, report).c_str());
  return 0;
}

}  // namespace cleave::app
