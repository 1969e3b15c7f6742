#include "config_schema/keys.h"

namespace cleave {
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
  k.honoured("interval", &c.interval,
             "layers whose forward runs again together in the backward, their first input being all that is "
             "kept; 0: off. pipeline.activation_checkpoint_interval is the same")
      .in(0, 1e6);
  k.honoured("number_checkpoints", &c.number,
             "how many inputs of layers are kept: the interval is the number of layers divided by it")
      .in(0, 1e6)
      .or_null();
  k.honoured("policy", &c.policy,
             "full: layers by the interval; selective: every layer of a transformer makes the outputs of its "
             "norms and of its activation function again inside its backward, and keeps the rest")
      .one_of({"full", "selective"});
  k.honoured("cpu_checkpointing", &c.to_host,
             "true switches recomputation on; the kept inputs inside a rank's layers live in pinned host "
             "memory and travel while layers compute");
  k.honoured(
      "partition_activations", &c.partition,
      "true switches recomputation on; with tensor_parallel.sequence_parallel, the default, kept inputs "
      "are divided over the tensor axis anyway, and without it each rank keeps its part of those inside "
      "its layers and gathers the whole in the backward");
  implied(k, "contiguous_memory_optimization", "activations come from one arena, which cannot fragment");
  implied(k, "synchronize_checkpoint_boundary", "the order on a stream needs no synchronization");
  k.warned("profile", "b=false", "times per checkpoint are not printed");
}

}  // namespace cleave
