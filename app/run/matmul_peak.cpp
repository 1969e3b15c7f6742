#include "app/run/matmul_peak.h"

#include <algorithm>
#include <chrono>

#include "device/workspace.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

namespace cleave::app {

double matmul_flops_per_s(Device device, DType type) {
  const bool gpu = device.is_cuda();
  const int64_t n = gpu ? 4096 : 1024;
  Memory memory({}, Memory::Mode::real, device);
  const Workspace space = allocate_workspace(memory, kKernelScratch);
  Stream stream(device);
  space.lend_to(stream);
  stream.measure_choices();
  auto square = [&](DType t) {
    return memory.allocate(MemoryKind::device, Category::staging, t, {n, n}, "peak");
  };
  const Buffer a = square(type), b = square(type), c = square(type);
  {  // random: a GPU multiplies equal numbers faster than those of training
    const Buffer values = square(DType::fp32);
    uint64_t key = 0;
    for (const Buffer* x : {&a, &b}) {
      kernels::launch(kernels::RandomFill{.y = values, .philox = {++key, 0}}, stream);
      kernels::launch(kernels::Cast{.y = *x, .x = values}, stream);
    }
    stream.synchronize();
  }
  const kernels::Matmul product{.c = c, .a = a, .b = b, .bias = {}};
  const int times = gpu ? 10 : 1;  // hides the launch time
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    stream.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int k = 0; k < times; ++k) kernels::launch(product, stream);
    stream.synchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, times * product.flops() / seconds);
  }
  return best;
}

}  // namespace cleave::app
