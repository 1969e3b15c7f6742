#include <fmt/core.h>

#include "config/keys.h"

namespace cleave::config {
namespace {

constexpr double kMostElements = 1e18;

void describe_stage3(Keys& k, ZeroConfig& z) {
  const bool off = z.stage != 3;
  const std::string why = fmt::format("zero_optimization.stage is {}; it is read by stage 3", z.stage);
  k.honoured("stage3_prefetch_bucket_size", &z.stage3_prefetch_bucket_size,
             "elements gathered ahead of their use")
      .at_least(0)
      .inert_if(off, why);
  k.honoured("stage3_param_persistence_threshold", &z.stage3_param_persistence_threshold,
             "parameters of at most this many elements stay whole on every rank")
      .at_least(0)
      .inert_if(off, why);
  k.honoured("stage3_max_live_parameters", &z.stage3_max_live_parameters,
             "elements that may be gathered at a time; a layer that is needed now is gathered all the same")
      .at_least(0)
      .inert_if(off, why);
  k.refused("stage3_model_persistence_threshold", "i=9223372036854775807",
            "the sum of the parameters that stay whole is not limited; lower "
            "stage3_param_persistence_threshold instead")
      .inert_if(off, why);
  k.no_effect("stage3_max_reuse_distance", "i=1000000000",
              "a parameter is released after each use and gathered again, whatever the distance")
      .at_least(0)
      .inert_if(off, why);
  for (const char* name :
       {"stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"})
    k.honoured(
        name, &z.stage3_gather_16bit_weights_on_model_save,
        "a training with --output ends by writing its weights, whole and in the model's type, to the folder "
        "hugging_face in it; at any stage");
  k.no_effect("stage3_module_granularity_threshold", "i=0", "the unit of gathering is the layer")
      .at_least(0)
      .inert_if(off, why);
  k.no_effect("stage3_use_all_reduce_for_fetch_params", "b=false", "an all-gather brings the same values")
      .inert_if(off, why);
  k.no_effect("stage3_allgather_sequential", "b=false",
              "one layer is gathered by one collective; stage3_prefetch_bucket_size says how far ahead")
      .inert_if(off, why);
  k.honoured(
       "mics_shard_size", &z.mics_shard_size,
       "ranks that share one copy of parameters, gradients and optimizer states; every such group keeps a "
       "copy (-1: one group)")
      .inert_if(off && z.mics_shard_size > 0, why);
  k.no_effect("mics_hierarchical_params_gather", "b=false", "near ranks gather in one collective");
  k.honoured("zero_hpz_partition_size", &z.zero_hpz_partition_size,
             "near ranks that share one copy of the parameters, while optimizer states are divided over all "
             "(1: off)")
      .inert_if(off && z.zero_hpz_partition_size > 1, why);
}

void describe_offload(Keys& k, ZeroConfig& z) {
  OffloadConfig& o = z.offload_optimizer;
  k.section("zero_optimization.offload_optimizer",
            "where optimizer states live; cleave.offload_update says where they are updated");
  k.honoured("device", &o.device, "none, cpu (host memory) or nvme (a file on disk); with any stage");
  const bool off = o.device == OffloadDevice::none, memory = o.device != OffloadDevice::nvme;
  const std::string none = "zero_optimization.offload_optimizer.device is none";
  const std::string why =
      fmt::format("zero_optimization.offload_optimizer.device is {}; only nvme reads it", o.device);
  k.honoured("pin_memory", &o.pin_memory, "page-locked host memory, or such buffers for what is on disk")
      .inert_if(off, none);
  k.honoured("nvme_path", &o.nvme_path,
             "folder on a local disk; its files have no names and end with the job")
      .or_null()
      .inert_if(memory, why);
  k.honoured("buffer_count", &o.buffer_count,
             "tiles of state in memory at a time: one is updated, others are being read and written")
      .in(1, 1024)
      .inert_if(memory, why);
  k.no_effect("pipeline_read", "b=false", "the next tiles are always read while one is updated");
  k.no_effect("pipeline_write", "b=false", "updated tiles are always written while others are updated");
  k.no_effect("fast_init", "b=false", "moments start as the zeros of a new file, only masters are written");
  k.honoured("ratio", &o.ratio,
             "share of each rank's optimizer state that is offloaded; the rest is on the device")
      .in(0, 1)
      .inert_if(off, none);
  k.refused("super_offload", "b=false", "this variant of offloading is not built");
  k.details("zero_optimization.offload_optimizer.super_offload", "processor cores for that variant",
            "cpuadam_cores_perc:n=0.8");
}

void describe_offload_param(Keys& k, ZeroConfig& z) {
  OffloadParamConfig& o = z.offload_param;
  const std::string section = "zero_optimization.offload_param";
  k.section(section, "where parameters live between their uses");
  k.honoured("device", &o.device, "none, cpu or nvme; layers are copied to the device ahead of their use")
      .inert_if(z.stage != 3 && o.device != OffloadDevice::none,
                fmt::format("zero_optimization.stage is {}; parameters are offloaded in stage 3", z.stage));
  const bool off = z.stage != 3 || o.device == OffloadDevice::none,
             on_disk = !off && o.device == OffloadDevice::nvme;
  k.honoured("pin_memory", &o.pin_memory, "page-locked host memory")
      .inert_if(off && z.stage == 3, section + ".device is none");
  const std::string why = fmt::format("{}.device is {}; only nvme reads it", section, o.device);
  k.honoured("nvme_path", &o.nvme_path, "folder of the files").or_null().inert_if(!on_disk, why);
  k.honoured("buffer_count", &o.buffer_count, "staging buffers between the files and the device")
      .at_least(2)
      .inert_if(!on_disk, why);
  k.no_effect("buffer_size", "i=100000000", "a buffer has the size of the largest layer's shard").at_least(1);
  k.honoured("max_in_cpu", &o.max_in_cpu, "elements of a rank that stay in host memory all the same")
      .at_least(0)
      .inert_if(!on_disk, why);
}

void describe_variants(Keys& k, ZeroConfig& z) {
  k.honoured(
       "zero_quantized_weights", &z.quantized_weights,
       "gathers move a byte an element and a scale for every 256: layers compute with weights rounded so, "
       "the optimizer keeps its own")
      .inert_if(z.stage != 3 && z.quantized_weights,
                fmt::format("zero_optimization.stage is {}; it is read by stage 3", z.stage));
  k.refused("zero_quantized_nontrainable_weights", "b=false",
            "zero_quantized_weights has those of frozen parameters, too");
  k.refused("zero_quantized_gradients", "b=false", "gradient sums are not quantized");
  k.refused("zeropp_loco_param", "o?=null", "error feedback of quantized gradients is not built", "{}");
  k.refused("zenflow", "o?=null", "this variant of offloading is not built", "{}");
  k.refused("legacy_stage1", "b=false", "the old form of stage 1 no longer exists in DeepSpeed either");
  k.warned(
      "load_from_fp32_weights", "b=true",
      "a checkpoint always restores the fp32 masters it holds, which the 16-bit weights are rounded from");
  k.honoured("cpu_offload_param", std::monostate{}, "old spelling of offload_param: {\"device\": \"cpu\"}")
      .or_null();
  k.list.back().type = Type::boolean, k.list.back().default_text = "null";
  k.section("zero_optimization.zeropp_loco_param", "error feedback of quantized gradients");
  k.details("zero_optimization.zeropp_loco_param", "error feedback of quantized gradients",
            "err_beta:n=0.8 reset_T:i=1024");
  k.section("zero_optimization.zenflow", "offload without stalls");
  k.details("zero_optimization.zenflow", "offload without stalls",
            "topk_ratio:n=0.1 select_strategy:s(auto|step|epoch)=\"auto\" select_interval:a=\"auto\" "
            "update_interval:a=\"auto\" overlap_step:b=false offload:b=false auto_ratio:n=0.99 "
            "full_warm_up_rounds:i=0 "
            "pt_reserved_cores_perc:n=0.5 steps_per_epoch:i?=null");
  k.section("zero_optimization.leaf_module", "modules gathered as one");
  for (const char* name : {"classes", "names", "name_suffixes"})
    k.no_effect(name, "a=[]", "the unit of gathering is the layer, whatever its class is called");
}

}  // namespace

void describe_zero(Keys& k, ZeroConfig& z) {
  k.section("zero_optimization", "what is divided over the data-parallel ranks, and where it lives");
  k.honoured("stage", &z.stage,
             "what is partitioned over the ranks; 0: nothing, 1: optimizer states, 2: gradients too, 3: "
             "parameters too")
      .in(0, 3);
  k.honoured("overlap_comm", &z.overlap_comm, "communicates while computing; on by default at stage 3")
      .or_null();
  k.honoured("reduce_bucket_size", &z.reduce_bucket_size,
             "largest number of elements in one gradient collective")
      .in(1, kMostElements);
  k.honoured("allgather_bucket_size", &z.allgather_bucket_size,
             "largest number of elements in one collective that publishes parameters")
      .in(0, kMostElements);
  k.no_effect("round_robin_gradients", "b=false",
              "every layer is cut evenly over the ranks, so their copies are even anyway");
  k.no_effect("contiguous_gradients", "b=true", "gradients are always contiguous");
  k.no_effect("reduce_scatter", "b=true",
              "gradients are reduced to their owner by a reduce-scatter from stage 1 on");
  k.no_effect("use_multi_rank_bucket_allreduce", "b=true",
              "gradients are reduced to their owner by a reduce-scatter");
  k.no_effect("allgather_partitions", "b=true", "updated parameters are always all-gathered");
  k.honoured("cpu_offload", std::monostate{}, "old spelling of offload_optimizer: {\"device\": \"cpu\"}")
      .or_null();
  k.list.back().type = Type::boolean, k.list.back().default_text = "null";
  k.no_effect("cpu_offload_use_pin_memory", "b?=null", "offload_optimizer.pin_memory decides");
  k.no_effect("compute_grad_norm", "b=true", "the norm is always computed; metrics and clipping read it");
  k.no_effect("parameter_alignment", "b=false",
              "a layer's parameters are one array, whose alignment changes no result and no file");
  k.no_effect("elastic_checkpoint", "b=false", "every checkpoint loads on any number of ranks");
  k.honoured("sub_group_size", &z.sub_group_size,
             "elements of optimizer state on disk that are updated at a time, 65536 to 2097152; 0: the most")
      .at_least(0)
      .inert_if(z.offload_optimizer.device != OffloadDevice::nvme,
                "optimizer states are in memory: an update runs in place and needs no buffer of this size");
  k.no_effect("ignore_unused_parameters", "b=true", "every parameter of the models gets a gradient");
  k.no_effect("memory_efficient_linear", "b=true", "matrix products save no more than they need");
  k.no_effect("pipeline_loading_checkpoint", "b=false", "a rank reads only its own part of a checkpoint");
  k.no_effect("override_module_apply", "b=true", "there are no modules to patch");
  k.no_effect("log_trace_cache_warnings", "b=false",
              "the order of the layers is known, so nothing is traced");
  k.no_effect("enable_sanity_checks", "b=false", "the checks are always on");
  k.no_effect("save_muon_momentum_buffer_in_memory", "b=false",
              "only the optimizer Muon reads it, and that is not built");
  describe_stage3(k, z);
  describe_variants(k, z);
  describe_offload(k, z);
  describe_offload_param(k, z);
}

}  // namespace cleave::config
