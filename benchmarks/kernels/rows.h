// What a row of the kernel benchmark is made of: operands on a device, and work on them that is timed.
#pragma once
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/kernels/ceilings.h"
#include "device/workspace.h"

namespace cleave::benchmarks {

struct Work {
  std::function<void()> run;
  double bytes = 0, flops = 0;  // of one run
  bool reads_only = false;
};

// Operands of one row; made when it starts and freed when it ends.
class Operands {
 public:
  explicit Operands(Device device) : memory_({}, Memory::Mode::real, device), stream_(device) {
    space_.lend_to(stream_);
    stream_.measure_choices();
  }

  // Values between -scale and scale; integers are zero.
  Tensor make(DType type, Shape shape, float scale = 1);
  Tensor tokens(int64_t rows, int64_t vocab);
  Stream& stream() { return stream_; }

  // On a GPU a run is many launches, so that neither launching nor waiting shows.
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

// The CPU, unless only GPUs are asked for, and the first GPU where there is one.
std::vector<Device> bench_devices(bool gpu_only);

// Registers the row; on a GPU as cuda/<name>.
void add_row(Device device, const std::string& name, std::function<Work(Operands&)> prepare);

// Rows of a file each, for training sizes.
void add_dense(Device device, DType type);
void add_updates(Device device);

// Measures what these devices can do at most and says it; before the rows run. A GPU's limits are read from
// `file` where it is there, and else measured and written to it, so that several runs share them; empty: no
// file.
void measure_limits(const std::vector<Device>& devices, const std::string& file);

}  // namespace cleave::benchmarks
