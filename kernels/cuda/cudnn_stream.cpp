#include "kernels/cuda/cudnn_stream.h"

#include <algorithm>
#include <mutex>

namespace cleave::kernels::gpu {
namespace {

struct Spares {
  std::mutex mutex;
  std::vector<std::unique_ptr<CudnnStream>> all;
};
// Never destroyed, because at process exit the driver may shut down before static objects.
Spares& spares() {
  static Spares* const all = new Spares;
  return *all;
}

std::unique_ptr<CudnnStream> take_spare(int device, int64_t room, bool any_order) {
  std::lock_guard lock(spares().mutex);
  auto& all = spares().all;
  const auto at = std::find_if(all.begin(), all.end(), [&](const auto& spare) {
    return spare->device == device && spare->room == room && spare->any_order == any_order;
  });
  if (at == all.end()) return nullptr;
  std::unique_ptr<CudnnStream> found = std::move(*at);
  all.erase(at);
  return found;
}

void leave_spare(CudnnStream* ended) {
  std::lock_guard lock(spares().mutex);
  spares().all.emplace_back(ended);
}

}  // namespace

CudnnStream& cudnn_of(CudaQueue& queue) {
  if (!queue.cudnn) {
    queue.use();
    const int64_t room = queue.product_scratch().bytes();
    std::unique_ptr<CudnnStream> cudnn = take_spare(queue.device(), room, queue.any_order);
    if (!cudnn)
      cudnn.reset(new CudnnStream{.device = queue.device(), .room = room, .any_order = queue.any_order});
    queue.cudnn = std::shared_ptr<CudnnStream>(cudnn.release(), leave_spare);
  }
  return *static_cast<CudnnStream*>(queue.cudnn.get());
}

}  // namespace cleave::kernels::gpu
