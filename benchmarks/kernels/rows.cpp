#include "benchmarks/kernels/rows.h"

#include <benchmark/benchmark.h>
#include <omp.h>

#include <chrono>
#include <cstdio>
#include <fstream>

#include <fmt/format.h>

#include "device/copy.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

namespace cleave::benchmarks {
namespace {

Ceilings on_cpu, on_gpu;

bool has_gpu() {
  static const bool found = !cuda_status().gpus.empty();
  return found;
}

double best_seconds(const Work& work) {
  double best = 1e30;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto begin = std::chrono::steady_clock::now();
    work.run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

// The largest product and the longest streams of bytes, by the kernels themselves.
Ceilings measure_gpu() {
  Operands o(Device::cuda(0));
  const int64_t n = 8192, many = int64_t{1} << 28;
  const kernels::Matmul product{.c = o.make(DType::bf16, {n, n}),
                                .a = o.make(DType::bf16, {n, n}),
                                .b = o.make(DType::bf16, {n, n}),
                                .bias = {},
                                .transpose_b = true};
  const Tensor x = o.make(DType::fp32, {many});
  const Work multiply = o.work(product, 0, product.flops());
  const Work copies = o.work(kernels::Cast{.y = o.make(DType::fp32, {many}, 0), .x = x}, 8.0 * double(many));
  const Work sums = o.work(kernels::Sum{.out = o.make(DType::fp64, {1}), .x = x}, 4.0 * double(many));
  return {.flops = multiply.flops / best_seconds(multiply),
          .read_bytes = sums.bytes / best_seconds(sums),
          .update_bytes = copies.bytes / best_seconds(copies)};
}

std::string row_name(Device device, const std::string& name) {
  return device.is_cuda() ? "cuda/" + name : name;
}

}  // namespace

std::vector<Device> bench_devices(bool gpu_only) {
  std::vector<Device> devices;
  if (!gpu_only) devices.push_back({});
  if (has_gpu()) devices.push_back(Device::cuda(0));
  return devices;
}

void add_row(Device device, const std::string& name, std::function<Work(Operands&)> prepare) {
  const bool gpu = device.is_cuda();
  auto body = [prepare, device, gpu](benchmark::State& state) {
    const Ceilings& limits = gpu ? on_gpu : on_cpu;
    Operands operands(device);
    const Work work = prepare(operands);
    work.run();
    for (auto _ : state) work.run();
    using benchmark::Counter;
    const double bytes_limit = work.reads_only ? limits.read_bytes : limits.update_bytes;
    const double fraction = work.flops > 0 ? work.flops / limits.flops : work.bytes / bytes_limit;
    const double unit = gpu ? 1e-12 : 1e-9;
    const char* flops = gpu ? "TFLOP/s" : "GFLOP/s";
    const char* bytes = gpu ? "TB/s" : "GB/s";
    state.counters[work.flops > 0 ? flops : bytes] =
        Counter((work.flops > 0 ? work.flops : work.bytes) * unit, Counter::kIsIterationInvariantRate);
    state.counters["%limit"] = Counter(100 * fraction, Counter::kIsIterationInvariantRate);
  };
  auto* row =
      benchmark::RegisterBenchmark(row_name(device, name).c_str(), body)->Unit(benchmark::kMillisecond);
  // On one thread the processor time is the real time without the neighbours' share.
  if (gpu || omp_get_max_threads() > 1) row->UseRealTime();
}

Tensor Operands::on_host(DType type, Shape shape, float scale) {
  buffers_.push_back(memory_.allocate(MemoryKind::host, Category::staging, type, shape, "operand"));
  const Tensor t = buffers_.back();
  if (type == DType::fp32) {
    float* p = t.as<float>();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < t.numel(); ++i)
      p[i] = scale * (float((i * 2654435761u) >> 8 & 0xffff) / 32768.0f - 1.0f);
  } else if (type == DType::bf16 || type == DType::fp16) {
    kernels::cpu::run(kernels::Cast{.y = t, .x = on_host(DType::fp32, shape, scale)});
    buffers_.pop_back();
  }
  return t;
}

// The operand where the kernels want it; the host's copy goes.
Tensor Operands::here(const Tensor& host) {
  if (!memory_.device().is_cuda()) return host;
  Buffer gpu = memory_.allocate(MemoryKind::device, Category::staging, host.dtype(), host.shape(), "operand");
  copy(gpu, host, stream_);
  stream_.synchronize();
  buffers_.back() = std::move(gpu);
  return buffers_.back();
}

Tensor Operands::make(DType type, Shape shape, float scale) { return here(on_host(type, shape, scale)); }

Tensor Operands::tokens(int64_t rows, int64_t vocab) {
  const Tensor t = on_host(DType::int32, {rows}, 0);
  for (int64_t i = 0; i < rows; ++i) t.as<int32_t>()[i] = int32_t((i * 7919 + i * i) % vocab);
  return here(t);
}

void measure_limits(const std::vector<Device>& devices, const std::string& file) {
  for (const Device device : devices) {
    if (!device.is_cuda()) {
      on_cpu = measure_ceilings();
      std::printf(
          "%d threads; limits: %.1f GFLOP/s fp32, %.1f GB/s read, %.1f GB/s plain four-array update\n",
          omp_get_max_threads(), on_cpu.flops * 1e-9, on_cpu.read_bytes * 1e-9, on_cpu.update_bytes * 1e-9);
      continue;
    }
    std::ifstream known(file);
    if (!(known >> on_gpu.flops >> on_gpu.read_bytes >> on_gpu.update_bytes)) {
      on_gpu = measure_gpu();
      if (!file.empty())
        std::ofstream(file) << fmt::format("{} {} {}\n", on_gpu.flops, on_gpu.read_bytes,
                                           on_gpu.update_bytes);
    }
    std::printf("cuda:0; limits: %.1f TFLOP/s bf16 product of 8192^3, %.2f TB/s read, %.2f TB/s copy\n",
                on_gpu.flops * 1e-12, on_gpu.read_bytes * 1e-12, on_gpu.update_bytes * 1e-12);
  }
}

}  // namespace cleave::benchmarks
