// Parts of a kernel measurement: operands on a device, and timed work on them.
#pragma once
#include <deque>
#include <functional>

#include "device/workspace.h"
#include "kernels/launch.h"

namespace cleave::bench {

struct Work {
  std::function<void()> run;
  double bytes = 0, flops = 0;  // per run
  bool reads_only = false;
};

// Owns the operands it makes.
class Operands {
 public:
  explicit Operands(Device device) : memory_({}, Memory::Mode::real, device), stream_(device) {
    space_.lend_to(stream_);
    stream_.measure_choices();
  }

  // Returns values between -scale and scale; integers are zero.
  Tensor make(DType type, Shape shape, float scale = 1);
  Tensor tokens(int64_t rows, int64_t vocab);
  Stream& stream() { return stream_; }

  // Returns work that runs the kernel on the stream and waits for it; bytes and flops are those of one
  // launch. On a GPU a run has many launches, to hide the time of launching and waiting.
  template <class Op>
  Work work(Op op, double bytes, double flops = 0) {
    const int times = memory_.device().is_cuda() ? 20 : 1;
    return {[op, times, this] {
              for (int i = 0; i < times; ++i) launch(op, stream_);
              stream_.synchronize();
            },
            bytes * times, flops * times};
  }

 private:
  Tensor on_host(DType type, Shape shape, float scale);
  Tensor here(const Tensor& host);

  Memory memory_;
  Workspace space_ = allocate_workspace(memory_, kKernelScratch);
  std::deque<Buffer> buffers_;
  Stream stream_;
};

}  // namespace cleave::bench
