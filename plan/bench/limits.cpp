#include "plan/bench/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <functional>

#include "device/memory.h"
#include "device/team.h"
#include "kernels/cpu/register_loops.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "plan/bench/loop.h"
#include "plan/bench/operands.h"

namespace cleave::bench {
namespace {

double now() {
  timespec t;
  clock_gettime(team_threads() > 1 ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

double best_seconds(int attempts, const std::function<void()>& run) {
  double best = 1e30;
  for (int i = 0; i < attempts; ++i) {
    const double begin = now();
    run();
    best = std::min(best, now() - begin);
  }
  return best;
}

// For all threads together.
double flop_rate(const kernels::cpu::RegisterLoop& loop, int attempts) {
  constexpr int64_t kRounds = 1'000'000;
  const double seconds = best_seconds(attempts, [&] {
    run_shares(
        team_threads(),
        [](const void* context, int, int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            static_cast<const kernels::cpu::RegisterLoop*>(context)->run(kRounds);
        },
        &loop);
  });
  return double(kRounds) * loop.flops * team_threads() / seconds;
}

// Larger than all caches; touched before use.
constexpr int64_t kNumel = 32 << 20;
Buffer large_array(Memory& memory) {
  Buffer array =
      memory.allocate(MemoryKind::host, Category::staging, DType::fp32, {kNumel}, "a limit's array");
  float* x = array.tensor().as<float>();
  over(kNumel, [&](int64_t begin, int64_t end) { std::fill(x + begin, x + end, 1.0f); });
  return array;
}

double update_rate(int attempts) {
  Memory memory;
  const Buffer arrays[] = {large_array(memory), large_array(memory), large_array(memory),
                           large_array(memory)};
  float *p = arrays[0].tensor().as<float>(), *m = arrays[1].tensor().as<float>(),
        *v = arrays[2].tensor().as<float>();
  const float* g = arrays[3].tensor().as<float>();
  return 28.0 * kNumel / best_seconds(attempts, [&] {
           over(kNumel, [&](int64_t begin, int64_t end) {
#pragma omp simd
             for (int64_t i = begin; i < end; ++i) {
               m[i] = 0.9f * m[i] + g[i];
               v[i] = 0.9f * v[i] + g[i];
               p[i] = p[i] - m[i] * v[i] * 1e-9f;
             }
           });
         });
}

double read_rate(int attempts) {
  Memory memory;
  const Buffer array = large_array(memory);
  const float* g = array.tensor().as<float>();
  constexpr int64_t kSums = 64;  // enough independent sums to hide latency
  return 4.0 * kNumel / best_seconds(attempts, [&] {
           over(kNumel, [&](int64_t begin, int64_t end) {
             float sums[kSums] = {};
             for (int64_t i = begin; i + kSums <= end; i += kSums)
#pragma omp simd
               for (int64_t j = 0; j < kSums; ++j) sums[j] += g[i + j];
             asm volatile("" : : "r"(sums) : "memory");
           });
         });
}

Limits measure_cpu() {
  constexpr int kAttempts = 7;
  return {.fp32 = flop_rate(kernels::cpu::fp32_loop(), kAttempts),
          .bf16 = flop_rate(kernels::cpu::bf16_loop(), kAttempts),
          .read_bytes = read_rate(kAttempts),
          .update_bytes = update_rate(kAttempts)};
}

std::string bf16_limit() { return fmt::format("limit/bf16/{}", kernels::cpu::bf16_loop().instruction); }

// Largest product and longest streams of bytes, with the real kernels.
Limits measure_gpu(Device device) {
  Operands o(device);
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
  const double flops = multiply.flops / best_seconds(5, multiply.run);
  return {.fp32 = flops,
          .bf16 = flops,
          .read_bytes = sums.bytes / best_seconds(5, sums.run),
          .update_bytes = copies.bytes / best_seconds(5, copies.run)};
}

}  // namespace

Limits measure_limits(Device device) { return device.is_cuda() ? measure_gpu(device) : measure_cpu(); }

std::vector<Subject> limit_rows() {
  constexpr int kAttempts = 3;  // per round
  const auto flops = [](const kernels::cpu::RegisterLoop& loop) {
    return [=] { return Visit{.rate = flop_rate(loop, kAttempts) * 1e-9, .unit = "GFLOP/s"}; };
  };
  return {{"limit/fp32", flops(kernels::cpu::fp32_loop())},
          {bf16_limit(), flops(kernels::cpu::bf16_loop())},
          {"limit/read", [] { return Visit{.rate = read_rate(kAttempts) * 1e-9, .unit = "GB/s"}; }},
          {"limit/update", [] { return Visit{.rate = update_rate(kAttempts) * 1e-9, .unit = "GB/s"}; }}};
}

std::vector<Bound> flops_bounds(DType type, const std::string& words, double times) {
  std::vector<Bound> bounds{{"limit/fp32", words, times}};
  if (type == DType::bf16) bounds.push_back({bf16_limit(), words, times});
  return bounds;
}

std::vector<Bound> bytes_bounds(bool reads_only) {
  if (reads_only) return {{"limit/read", "a plain sum"}};
  return {{"limit/update", "a plain update"}};
}

}  // namespace cleave::bench
