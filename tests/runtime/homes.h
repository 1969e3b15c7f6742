// Configurations of the homes of weights and gradients.
#pragma once
#include "tests/runtime/small_models.h"
#include "tests/scratch.h"

namespace cleave::testing {

// Gradients live with the optimizer's state.
struct Homes {
  bool parameters = false, optimizer = false, pinned = true;
  bool disk = false;       // parameters on disk
  int64_t kept_numel = 0;  // kept in host memory anyway
  int buffers = 2;
  bool state_on_disk = false;
  bool streamed = false;  // update of optimizer state
};
inline std::vector<Homes> all_homes() {
  return {{.parameters = true},
          {.optimizer = true},
          {.parameters = true, .optimizer = true},
          {.parameters = true, .optimizer = true, .pinned = false},
          {.parameters = true, .disk = true},
          {.parameters = true, .optimizer = true, .disk = true, .kept_numel = 1500, .buffers = 4},
          {.parameters = true, .optimizer = true, .disk = true, .state_on_disk = true},
          {.optimizer = true, .streamed = true},
          {.parameters = true, .optimizer = true, .pinned = false, .streamed = true},
          {.parameters = true, .optimizer = true, .disk = true, .state_on_disk = true, .streamed = true}};
}

inline const Scratch& folder() {
  static const Scratch scratch;
  return scratch;
}

inline config::DsConfig with(config::DsConfig c, const Homes& h) {
  config::OffloadParamConfig& p = c.zero.offload_param;
  if (h.parameters) p.device = h.disk ? config::OffloadDevice::nvme : config::OffloadDevice::cpu;
  p.nvme_path = folder().folder(), p.max_in_cpu = h.kept_numel, p.buffer_count = h.buffers;
  config::OffloadConfig& o = c.zero.offload_optimizer;
  if (h.optimizer) o.device = h.state_on_disk ? config::OffloadDevice::nvme : config::OffloadDevice::cpu;
  o.nvme_path = p.nvme_path, c.zero.sub_group_size = 700;
  p.pin_memory = o.pin_memory = h.pinned;
  if (h.streamed) c.offload_update = config::OffloadUpdate::device;
  return c;
}

inline config::DsConfig in_type(config::DsConfig c, config::Precision precision) {
  c.precision = precision;
  c.fp16.enabled = precision == config::Precision::fp16, c.fp16.initial_scale_power = 8;
  return c;
}
inline DType type_of(config::Precision p) {
  return p == config::Precision::fp32   ? DType::fp32
         : p == config::Precision::bf16 ? DType::bf16
                                        : DType::fp16;
}

inline std::string text_of(const Homes& h, const config::DsConfig& c) {
  return fmt::format(
      "parameters {} optimizer {} pinned {} disk {} {} streamed {} stage {} overlap {} prefetch {}",
      h.parameters, h.optimizer, h.pinned, h.disk, h.state_on_disk, h.streamed, c.zero.stage,
      c.zero.overlap_comm, c.zero.stage3_prefetch_bucket_size);
}

inline constexpr runtime::EngineOptions kWorkers{.compute = Stream::Mode::worker};

}  // namespace cleave::testing
