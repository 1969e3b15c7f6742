#include "config_schema/keys.h"

namespace cleave::config {

void describe_aio(Keys& k, DsConfig& c) {
  k.section("aio", "I/O of offloaded state");
  const bool weights = c.zero.stage == 3 && c.zero.offload_param.device == OffloadDevice::nvme;
  const bool off = !weights && c.zero.offload_optimizer.device != OffloadDevice::nvme;
  const std::string why = "nothing is offloaded to nvme";
  k.honoured("block_size", &c.aio.block_size, "bytes per request; a multiple of 4096")
      .in(4096, 1 << 30)
      .inert_if(off, why);
  k.honoured("queue_depth", &c.aio.queue_depth, "requests in flight with io_uring")
      .in(1, 4096)
      .inert_if(off, why);
  k.honoured("intra_op_parallelism", &c.aio.intra_op_parallelism, "I/O threads, for kernels without io_uring")
      .in(1, 256)
      .inert_if(off, why);
  k.no_effect("single_submit", "b=false", "requests are submitted when the queue has room");
  k.no_effect("overlap_events", "b=true", "submission and completion always overlap");
  k.refused("use_gds", "b=false", "files are read and written through host memory");
}

}  // namespace cleave::config
