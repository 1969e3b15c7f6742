#include "plan/bench/operands.h"

#include "device/copy.h"
#include "kernels/elementwise.h"
#include "plan/bench/loop.h"

namespace cleave::bench {

Tensor Operands::on_host(DType type, Shape shape, float scale) {
  buffers_.push_back(memory_.allocate(MemoryKind::host, Category::staging, type, shape, "operand"));
  const Tensor t = buffers_.back();
  if (type == DType::fp32) {
    float* p = t.as<float>();
    over(t.numel(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        p[i] = scale * (float((i * 2654435761u) >> 8 & 0xffff) / 32768.0f - 1.0f);
    });
  } else if (type == DType::bf16 || type == DType::fp16) {
    kernels::cpu::run(kernels::Cast{.y = t, .x = on_host(DType::fp32, shape, scale)});
    buffers_.pop_back();
  }
  return t;
}

// Moves the operand to the device of the kernels and drops the host copy.
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

}  // namespace cleave::bench
