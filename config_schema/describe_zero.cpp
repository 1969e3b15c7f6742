#include <fmt/core.h>

#include "config_schema/keys.h"

namespace cleave::config {
namespace {

constexpr double kMostElements = 1e18;

void describe_stage3(Keys& k, ZeroConfig& z) {
  const bool off = z.stage != 3;
  const std::string why = fmt::format("zero_optimization.stage is {}; only stage 3 reads this key", z.stage);
  k.honoured("stage3_prefetch_bucket_size", &z.stage3_prefetch_bucket_size, "elements to prefetch")
      .at_least(0)
      .inert_if(off, why);
  k.honoured("stage3_param_persistence_threshold", &z.stage3_param_persistence_threshold,
             "largest parameter, in elements, that stays gathered on every rank")
      .at_least(0)
      .inert_if(off, why);
  k.honoured("stage3_max_live_parameters", &z.stage3_max_live_parameters,
             "elements to keep gathered at a time; a layer in use is always gathered")
      .at_least(0)
      .inert_if(off, why);
  k.refused("stage3_model_persistence_threshold", "i=9223372036854775807",
            "the total size of persistent parameters is not limited; lower "
            "stage3_param_persistence_threshold instead")
      .inert_if(off, why);
  k.no_effect("stage3_max_reuse_distance", "i=1000000000",
              "a parameter is released after each use, at any reuse distance")
      .at_least(0)
      .inert_if(off, why);
  for (const char* name :
       {"stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"})
    k.honoured(name, &z.stage3_gather_16bit_weights_on_model_save,
               "at the end, a training with --output writes the whole weights in the model's type to its "
               "sub-folder hugging_face; at any stage");
  k.no_effect("stage3_module_granularity_threshold", "i=0", "the unit of gathering is the layer")
      .at_least(0)
      .inert_if(off, why);
  k.no_effect("stage3_use_all_reduce_for_fetch_params", "b=false", "an all-gather transfers the same values")
      .inert_if(off, why);
  k.no_effect("stage3_allgather_sequential", "b=false",
              "one collective gathers one layer; stage3_prefetch_bucket_size limits the prefetch")
      .inert_if(off, why);
  k.honoured("mics_shard_size", &z.mics_shard_size,
             "number of ranks that share one copy of parameters, gradients and optimizer states; each group "
             "has a copy (-1: one group)")
      .inert_if(off && z.mics_shard_size > 0, why);
  k.no_effect("mics_hierarchical_params_gather", "b=false", "near ranks gather in one collective");
  k.honoured("zero_hpz_partition_size", &z.zero_hpz_partition_size,
             "number of near ranks that share one copy of the parameters; optimizer states are sharded over "
             "all ranks (1: off)")
      .inert_if(off && z.zero_hpz_partition_size > 1, why);
}

void describe_offload(Keys& k, ZeroConfig& z) {
  OffloadConfig& o = z.offload_optimizer;
  k.section("zero_optimization.offload_optimizer",
            "offload of optimizer states; cleave.offload_update selects the device of the update");
  k.honoured("device", &o.device, "none, cpu (host memory) or nvme (file); any stage");
  const bool off = o.device == OffloadDevice::none, memory = o.device != OffloadDevice::nvme;
  const std::string none = "zero_optimization.offload_optimizer.device is none";
  const std::string why =
      fmt::format("zero_optimization.offload_optimizer.device is {}; only nvme reads this key", o.device);
  k.honoured("pin_memory", &o.pin_memory,
             "pinned host memory for the state, or for the staging buffers of nvme")
      .inert_if(off, none);
  k.honoured("nvme_path", &o.nvme_path,
             "folder on a local disk; its files are unlinked on creation and end with the job")
      .or_null()
      .inert_if(memory, why);
  k.honoured("buffer_count", &o.buffer_count,
             "number of staging buffers: one tile is updated, others are read and written")
      .in(1, 1024)
      .inert_if(memory, why);
  k.no_effect("pipeline_read", "b=false", "the next tiles are always read during an update");
  k.no_effect("pipeline_write", "b=false", "updated tiles are always written during the next updates");
  k.no_effect("fast_init", "b=false", "moments start as zeros of a new file; only masters are written");
  k.honoured("ratio", &o.ratio,
             "share of each rank's optimizer state to offload; the rest stays on the device")
      .in(0, 1)
      .inert_if(off, none);
  k.refused("super_offload", "b=false", "no such variant of offload");
  k.details("zero_optimization.offload_optimizer.super_offload", "CPU cores for that variant",
            "cpuadam_cores_perc:n=0.8");
}

void describe_offload_param(Keys& k, ZeroConfig& z) {
  OffloadParamConfig& o = z.offload_param;
  const std::string section = "zero_optimization.offload_param";
  k.section(section, "offload of parameters");
  k.honoured("device", &o.device, "none, cpu or nvme; layers are copied to the device before their use")
      .inert_if(z.stage != 3 && o.device != OffloadDevice::none,
                fmt::format("zero_optimization.stage is {}; stage 3 offloads parameters", z.stage));
  const bool off = z.stage != 3 || o.device == OffloadDevice::none,
             on_disk = !off && o.device == OffloadDevice::nvme;
  k.honoured("pin_memory", &o.pin_memory, "pinned host memory")
      .inert_if(off && z.stage == 3, section + ".device is none");
  const std::string why = fmt::format("{}.device is {}; only nvme reads this key", section, o.device);
  k.honoured("nvme_path", &o.nvme_path, "folder of the files").or_null().inert_if(!on_disk, why);
  k.honoured("buffer_count", &o.buffer_count, "staging buffers between the files and the device")
      .at_least(2)
      .inert_if(!on_disk, why);
  k.no_effect("buffer_size", "i=100000000", "a buffer has the size of the largest layer's shard").at_least(1);
  k.honoured("max_in_cpu", &o.max_in_cpu, "number of elements per rank that stay in host memory")
      .at_least(0)
      .inert_if(!on_disk, why);
}

void describe_variants(Keys& k, ZeroConfig& z) {
  k.honoured("zero_quantized_weights", &z.quantized_weights,
             "all-gathers send 8-bit weights with one scale per 256 elements; layers compute with the "
             "rounded weights, the optimizer keeps exact masters")
      .inert_if(z.stage != 3 && z.quantized_weights,
                fmt::format("zero_optimization.stage is {}; only stage 3 reads this key", z.stage));
  k.refused("zero_quantized_nontrainable_weights", "b=false",
            "zero_quantized_weights also covers frozen parameters");
  k.refused("zero_quantized_gradients", "b=false", "no quantized gradient reductions");
  k.refused("zeropp_loco_param", "o?=null", "no error feedback for quantized gradients", "{}");
  k.refused("zenflow", "o?=null", "no such variant of offload", "{}");
  k.refused("legacy_stage1", "b=false", "DeepSpeed no longer has the old form of stage 1 either");
  k.warned("load_from_fp32_weights", "b=true",
           "a checkpoint always restores its fp32 masters; the 16-bit weights are rounded from them");
  k.honoured("cpu_offload_param", std::monostate{}, "old spelling of offload_param: {\"device\": \"cpu\"}")
      .or_null();
  k.list.back().type = Type::boolean, k.list.back().default_text = "null";
  k.section("zero_optimization.zeropp_loco_param", "error feedback for quantized gradients");
  k.details("zero_optimization.zeropp_loco_param", "error feedback for quantized gradients",
            "err_beta:n=0.8 reset_T:i=1024");
  k.section("zero_optimization.zenflow", "offload without stalls");
  k.details("zero_optimization.zenflow", "offload without stalls",
            "topk_ratio:n=0.1 select_strategy:s(auto|step|epoch)=\"auto\" select_interval:a=\"auto\" "
            "update_interval:a=\"auto\" overlap_step:b=false offload:b=false auto_ratio:n=0.99 "
            "full_warm_up_rounds:i=0 "
            "pt_reserved_cores_perc:n=0.5 steps_per_epoch:i?=null");
  k.section("zero_optimization.leaf_module", "modules to gather together");
  for (const char* name : {"classes", "names", "name_suffixes"})
    k.no_effect(name, "a=[]", "the layer is the unit of gathering, for every class");
}

}  // namespace

void describe_zero(Keys& k, ZeroConfig& z) {
  k.section("zero_optimization", "sharding over the data-parallel ranks, and its placement");
  k.honoured("stage", &z.stage,
             "sharded state; 0: none, 1: optimizer states, 2: and gradients, 3: and parameters")
      .in(0, 3);
  k.honoured("overlap_comm", &z.overlap_comm,
             "overlaps communication with computation; on by default at stage 3")
      .or_null();
  k.honoured("reduce_bucket_size", &z.reduce_bucket_size, "largest gradient collective, in elements")
      .in(1, kMostElements);
  k.honoured("allgather_bucket_size", &z.allgather_bucket_size,
             "largest all-gather of updated parameters, in elements")
      .in(0, kMostElements);
  k.no_effect("round_robin_gradients", "b=false",
              "each layer is split evenly over the ranks, so all copies are even");
  k.no_effect("contiguous_gradients", "b=true", "gradients are always contiguous");
  k.no_effect("reduce_scatter", "b=true",
              "from stage 1 on, a reduce-scatter reduces gradients to their owner");
  k.no_effect("use_multi_rank_bucket_allreduce", "b=true",
              "a reduce-scatter reduces gradients to their owner");
  k.no_effect("allgather_partitions", "b=true", "updated parameters are always all-gathered");
  k.honoured("cpu_offload", std::monostate{}, "old spelling of offload_optimizer: {\"device\": \"cpu\"}")
      .or_null();
  k.list.back().type = Type::boolean, k.list.back().default_text = "null";
  k.no_effect("cpu_offload_use_pin_memory", "b?=null", "offload_optimizer.pin_memory decides");
  k.no_effect("compute_grad_norm", "b=true", "the norm is always computed for metrics and clipping");
  k.no_effect("parameter_alignment", "b=false",
              "a layer's parameters are one array; alignment changes no result and no file");
  k.no_effect("elastic_checkpoint", "b=false", "every checkpoint loads on any number of ranks");
  k.honoured("sub_group_size", &z.sub_group_size,
             "tile of optimizer state on disk, in elements, 65536 to 2097152; 0: the largest")
      .at_least(0)
      .inert_if(z.offload_optimizer.device != OffloadDevice::nvme,
                "optimizer states are in memory: the update runs in place without a buffer");
  k.no_effect("ignore_unused_parameters", "b=true", "every parameter of the built-in models gets a gradient");
  k.no_effect("memory_efficient_linear", "b=true", "matrix products save only the required tensors");
  k.no_effect("pipeline_loading_checkpoint", "b=false", "a rank reads its own part of a checkpoint only");
  k.no_effect("override_module_apply", "b=true", "Cleave has no modules to patch");
  k.no_effect("log_trace_cache_warnings", "b=false", "the order of the layers is known; nothing is traced");
  k.no_effect("enable_sanity_checks", "b=false", "the checks are always on");
  k.no_effect("save_muon_momentum_buffer_in_memory", "b=false",
              "only the optimizer Muon reads this key, and Muon is not supported");
  describe_stage3(k, z);
  describe_variants(k, z);
  describe_offload(k, z);
  describe_offload_param(k, z);
}

}  // namespace cleave::config
