// Measures every kernel at training sizes, in GFLOP/s or GB/s (TFLOP/s or TB/s on a GPU) and in
// percent of the limit measured at the start of the run.
// usage: OMP_NUM_THREADS=2 kernels_bench [--gpu_only] [--limits=FILE] [--benchmark_filter=...]
//   --gpu_only     no rows and no limits of the CPU
//   --limits=FILE  limits of a GPU: read from the file if it exists, otherwise measured and written
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <string_view>

#include "device/team.h"
#include "kernels/cpu/register_loops.h"
#include "plan/bench/kernel_rows.h"
#include "plan/bench/limits.h"

namespace cleave::bench {
namespace {

// Returns measured limits, or those of a GPU from the file of an earlier run.
Limits limits_of(Device device, const std::string& file) {
  Limits limits;
  if (!device.is_cuda()) {
    limits = measure_limits(device);
    std::printf(
        "%d threads; limits: %.1f GFLOP/s fp32, %.1f bf16 (%s), %.1f GB/s read, %.1f GB/s plain four-array "
        "update\n",
        team_threads(), limits.fp32 * 1e-9, limits.bf16 * 1e-9, kernels::cpu::bf16_loop().instruction,
        limits.read_bytes * 1e-9, limits.update_bytes * 1e-9);
    return limits;
  }
  std::ifstream known(file);
  if (known >> limits.bf16 >> limits.read_bytes >> limits.update_bytes) {
    limits.fp32 = limits.bf16;
  } else {
    limits = measure_limits(device);
    if (!file.empty())
      std::ofstream(file) << fmt::format("{} {} {}\n", limits.bf16, limits.read_bytes, limits.update_bytes);
  }
  std::printf("cuda:0; limits: %.1f TFLOP/s bf16 product of 8192^3, %.2f TB/s read, %.2f TB/s copy\n",
              limits.bf16 * 1e-12, limits.read_bytes * 1e-12, limits.update_bytes * 1e-12);
  return limits;
}

void add_row(Device device, const KernelRow& row, const Limits& limits) {
  const bool gpu = device.is_cuda();
  auto body = [row, device, gpu, limits](benchmark::State& state) {
    Operands operands(device);
    const Work work = row.prepare(operands);
    work.run();
    for (auto _ : state) work.run();
    using benchmark::Counter;
    const double bytes_limit = work.reads_only ? limits.read_bytes : limits.update_bytes;
    const double fraction = work.flops > 0 ? work.flops / limits.flops(row.type) : work.bytes / bytes_limit;
    const double unit = gpu ? 1e-12 : 1e-9;
    const char* flops = gpu ? "TFLOP/s" : "GFLOP/s";
    const char* bytes = gpu ? "TB/s" : "GB/s";
    state.counters[work.flops > 0 ? flops : bytes] =
        Counter((work.flops > 0 ? work.flops : work.bytes) * unit, Counter::kIsIterationInvariantRate);
    state.counters["%limit"] = Counter(100 * fraction, Counter::kIsIterationInvariantRate);
  };
  auto* added = benchmark::RegisterBenchmark((gpu ? "cuda/" + row.name : row.name).c_str(), body)
                    ->Unit(benchmark::kMillisecond);
  // On one thread, CPU time is real time without the share of other processes.
  if (gpu || team_threads() > 1) added->UseRealTime();
}

}  // namespace
}  // namespace cleave::bench

int main(int argc, char** argv) {
  using namespace cleave;
  using namespace cleave::bench;
  benchmark::Initialize(&argc, argv);
  bool gpu_only = false;
  std::string file;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--gpu_only")
      gpu_only = true;
    else if (option.starts_with("--limits="))
      file = option.substr(option.find('=') + 1);
    else {
      fmt::print(stderr,
                 "kernels_bench: {} is unknown; it takes --gpu_only, --limits=FILE and --benchmark_...\n",
                 option);
      return 2;
    }
  }
  std::vector<Device> devices;
  if (!gpu_only) devices.push_back({});
  if (!cuda_status().gpus.empty()) devices.push_back(Device::cuda(0));
  for (const Device device : devices) {
    const Limits limits = limits_of(device, file);
    for (const auto& rows : {product_rows(device), layer_rows(device), update_rows(device, 100)})
      for (const KernelRow& row : rows) add_row(device, row, limits);
  }
  benchmark::RunSpecifiedBenchmarks();
}
