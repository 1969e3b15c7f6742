#include "config_schema/keys.h"

namespace cleave::config {
namespace {

// Describes a DeepSpeed switch that requests recomputation and needs no other action here.
void implied(Keys& k, const char* name, std::string meaning) {
  k.honoured(name, std::monostate{}, "true enables recomputation; " + std::move(meaning));
  k.list.back().type = Type::boolean, k.list.back().default_text = "false";
}

}  // namespace

// interval and policy are additions to DeepSpeed's keys; in DeepSpeed the program sets them, and
// the section alone enables nothing. Here any key that requests recomputation enables it.
void describe_checkpointing(Keys& k, CheckpointingConfig& c) {
  k.section("activation_checkpointing", "activation recomputation");
  const size_t first = k.list.size();
  k.honoured("interval", &c.interval,
             "number of layers to recompute at a time in the backward pass; only the input of the first is "
             "kept; 0: off. Same as pipeline.activation_checkpoint_interval")
      .in(0, 1e6);
  k.honoured("number_checkpoints", &c.number,
             "number of layers that keep their input; the interval is the number of layers divided by it")
      .in(0, 1e6)
      .or_null();
  k.honoured("policy", &c.policy,
             "full: recomputes whole layers by the interval; selective: recomputes the outputs of norms and "
             "activation functions in each transformer layer and keeps the rest; fit: on each pipeline rank, "
             "recomputes as little as fits in the device's memory (sets full_layers and selective_layers)");
  k.honoured("full_layers", &c.full_layers,
             "number of layers per pipeline rank that keep only their input, such as \"2,1,0,0\"");
  k.honoured("selective_layers", &c.selective_layers,
             "number of further layers per pipeline rank that recompute as with the policy selective");
  k.honoured("cpu_checkpointing", &c.to_host,
             "true enables recomputation and keeps the inputs in pinned host memory; copies overlap with "
             "computation");
  k.honoured("partition_activations", &c.partition,
             "true enables recomputation; if tensor_parallel.sequence_parallel is false, each "
             "tensor-parallel rank keeps a part of an input and the ranks gather it in the backward pass "
             "(with the default, true, inputs are split anyway)");
  implied(k, "contiguous_memory_optimization", "activations come from one arena, which cannot fragment");
  implied(k, "synchronize_checkpoint_boundary", "stream order needs no synchronization");
  for (Key& key : std::span(k.list).subspan(first))
    key.not_in_torch(
        "only calls of cleave.checkpointing in the module recompute, unless cleave.native is true");
  k.warned("profile", "b=false", "times per checkpoint are not available");
}

}  // namespace cleave::config
