#include "config/keys.h"

namespace cleave::config {
namespace {

// A switch of DeepSpeed's that asks for recomputation and needs nothing else here.
void implied(Keys& k, const char* name, std::string meaning) {
  k.honoured(name, std::monostate{}, "true switches recomputation on; " + std::move(meaning));
  k.list.back().type = Type::boolean, k.list.back().default_text = "false";
}

}  // namespace

// interval and policy are additions to DeepSpeed's keys, where a program's code says such things. There the
// section alone switches nothing on; here any key of it that asks for something does.
void describe_checkpointing(Keys& k, CheckpointingConfig& c) {
  k.section("activation_checkpointing", "what is kept of the forward pass");
  k.honoured(
       "interval", &c.interval,
       "recomputes this many layers at a time in the backward and keeps only the input of the first; 0: "
       "off. pipeline.activation_checkpoint_interval means the same")
      .in(0, 1e6);
  k.honoured("number_checkpoints", &c.number,
             "how many layers keep their input; the interval is the number of layers divided by this")
      .in(0, 1e6)
      .or_null();
  k.honoured(
       "policy", &c.policy,
       "full: recomputes whole layers by the interval; selective: every transformer layer recomputes only "
       "the outputs of its norms and of its activation function, and keeps the rest")
      .one_of({"full", "selective"});
  k.honoured(
      "cpu_checkpointing", &c.to_host,
      "true switches recomputation on and keeps the inputs in pinned host memory; they are copied while "
      "layers compute");
  k.honoured(
      "partition_activations", &c.partition,
      "true switches recomputation on; where tensor_parallel.sequence_parallel is false, each tensor rank "
      "keeps its part of an input and the ranks gather the whole in the backward (with the default, true, "
      "inputs are divided anyway)");
  implied(k, "contiguous_memory_optimization", "activations come from one arena, which cannot fragment");
  implied(k, "synchronize_checkpoint_boundary", "the order on a stream needs no synchronization");
  k.warned("profile", "b=false", "times per checkpoint are not printed");
}

}  // namespace cleave::config
