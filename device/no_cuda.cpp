// A build without the CUDA backend.
#include "device/cuda/cuda_memory.h"
#include "device/graphs.h"
#include "device/loading.h"
#include "device/queue.h"
#include "device/tool_ranges.h"

namespace cleave {
namespace {

constexpr const char* kProblem =
    "this build has no CUDA backend; install the CUDA wheel, or build with cmake --preset cuda";

}  // namespace

CudaStatus cuda_status(bool) {
  CudaStatus status;
  status.problem = kProblem;
  return status;
}

std::string problem_of_loading() { return {}; }

Gpu cuda_gpu(Device device) { fail(Exit::usage, "{}: {}", name_of(device), kProblem); }

std::unique_ptr<Queue> make_cuda_queue(Device device, Stream::Turn) {
  fail(Exit::usage, "{}: {}", name_of(device), kProblem);
}

std::unique_ptr<Queue> adopt_cuda_queue(Stream::Foreign foreign) {
  return make_cuda_queue(foreign.device, Stream::Turn::usual);
}

MemoryBlock cuda_allocate(Device device, int64_t) { fail(Exit::usage, "{}: {}", name_of(device), kProblem); }

MemoryBlock cuda_allocate_pinned(Device, int64_t) { return {}; }

std::unique_ptr<Graphs> make_graphs(std::vector<Stream*>, Graphs::Use) {
  fail(Exit::usage, "CUDA graphs: {}", kProblem);
}

int64_t cuda_identity(Device) { return 0; }

bool a_tool_listens() { return false; }
void begin_tool_range(std::string_view, std::string_view) {}
void end_tool_range() {}

}  // namespace cleave
