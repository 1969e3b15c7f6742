#include "config/keys.h"

namespace cleave::config {
namespace {

void describe_lora(Keys& k, LoraConfig& c) {
  k.section("cleave.lora", "adapters of low rank beside linear layers (LoRA), which alone are trained");
  k.honoured("targets", &c.targets,
             "linear layers that have one, by their names or the last parts of them (q_proj, mlp.down_proj), "
             "or all-linear: all of the blocks")
      .or_text();
  k.honoured("rank", &c.rank, "columns between an adapter's two matrices").in(1, 1 << 16);
  k.honoured("alpha", &c.alpha, "what an adapter gives is multiplied with this divided by the rank").above(0);
  k.honoured("use_rslora", &c.use_rslora, "alpha is divided by the root of the rank (rsLoRA)")
      .inert_if(c.rank == 1, "cleave.lora.rank is 1");
  k.refused("dropout", "n=0.0", "dropout of an adapter's input is not built", "0");
  k.refused("use_dora", "b=false", "DoRA is not built");
  k.refused("bias", "s=\"none\"", "biases beside adapters are not trained");
  k.refused("modules_to_save", "l?=null", "layers beside adapters are not trained", "[]");
}

void describe_fp8(Keys& k, DsConfig& c) {
  k.section("cleave.fp8", "products of 8-bit floats in the linear layers of a transformer's blocks");
  k.honoured(
      "scaling", &c.fp8.scaling,
      "what operands are scaled by before they are rounded to 8 bits: off (they stay as they are), delayed "
      "(the largest magnitude of each in earlier steps), or row (of every row its own)");
  k.honoured("history", &c.fp8.history, "steps that delayed scaling looks back")
      .in(1, 1024)
      .inert_if(c.fp8.scaling != Fp8Scaling::delayed, "cleave.fp8.scaling is not delayed");
}

}  // namespace

void describe_own(Keys& k, DsConfig& c) {
  k.section("cleave", "keys of this program");
  k.honoured("comm_timeout_s", &c.comm_timeout_s,
             "seconds a rank waits for the others before it reports who is missing")
      .in(1, 1e6);
  k.honoured("save_on_stop", &c.save_on_stop,
             "a PyTorch script that is asked to stop (SIGTERM, SIGINT, SIGUSR1) ends its step, saves where "
             "save_checkpoint was last called, and ends with exit code 75; cleave train always does that");
  k.honoured("loss_average", &c.loss_average,
             "what a step's loss is the mean of: targets (all that have a loss count alike, whichever "
             "micro-batch they "
             "are in), or micro_batches (each counts alike, as in DeepSpeed; one without targets as 0)");
  k.honoured(
       "weight_decay_on", &c.weight_decay_on,
       "which parameters optimizer.params.weight_decay is for: matrices (neither biases nor norms, as in "
       "Hugging "
       "Face's Trainer), all (as DeepSpeed given model.parameters()), or patterns of names such as *.weight")
      .or_text()
      .inert_if(c.optimizer.weight_decay == 0, "optimizer.params.weight_decay is 0");
  k.honoured(
       "freeze", &c.freeze,
       "parameters that are not trained, as patterns of names such as *.mlp.* or model.embed_tokens.*: no "
       "gradients, masters or optimizer state of them are made")
      .or_text();
  k.honoured("native", &c.native,
             "a script's causal language model of transformers is computed by the engine's own layers and "
             "kernels, not by torch; cleave train always does that");
  k.honoured(
       "sequence_length", &c.sequence_length,
       "tokens of a sample, at most, for which cleave.native keeps activations; 0: all positions of the "
       "model")
      .in(0, 1e9)
      .inert_if(!c.native, "cleave.native is false");
  k.honoured("exact_sums", &c.exact_sums,
             "sums gradients as 64-bit integers: the same bits for every number of ranks, stages and "
             "micro-batches a rank, at equal micro-batch size; 8 bytes a parameter");
  k.honoured("exact_sums_grid", &c.exact_sums_grid,
             "each micro-batch's averaged gradient is rounded to a multiple of 2 to minus this")
      .in(20, 100)
      .inert_if(!c.exact_sums, "cleave.exact_sums is false");
  k.honoured(
       "deepspeed_stage0_loss_scale", &c.deepspeed_stage0_loss_scale,
       "at ZeRO stage 0, halves a dynamic fp16 loss scale at every overflow and continues at its minimum, as "
       "DeepSpeed does there; by default stage 0 has the rule of stages 1 to 3")
      .inert_if(!c.fp16.enabled, "fp16.enabled is false")
      .inert_if(c.fp16.loss_scale > 0, "fp16.loss_scale is fixed")
      .inert_if(c.zero.stage > 0, fmt::format("zero_optimization.stage is {}", c.zero.stage));
  k.honoured(
       "cuda_graphs", &c.cuda_graphs,
       "launches each pass of a GPU rank as one CUDA graph: on, off, or auto: where that is faster in its "
       "first steps; jobs of one rank without offload and trace")
      .inert_if(c.zero.offload_optimizer.device != OffloadDevice::none ||
                    c.zero.offload_param.device != OffloadDevice::none,
                "state or parameters are offloaded");
  k.honoured("tf32", &c.tf32,
             "matrix products of fp32 on a GPU's tensor cores, which round their operands to 11 bits")
      .inert_if(c.fp16.enabled || c.bf16_enabled, "products are of 16 bits");
  k.honoured("logits_dtype", &c.logits_dtype,
             "type of the logits between the head's product and the loss, whose sums are fp32: fp32, model "
             "(as the weights; their gradient takes their place), or auto: model on a GPU, fp32 on the CPU")
      .inert_if(!c.fp16.enabled && !c.bf16_enabled, "the model is fp32");
  k.honoured("logits_rows", &c.logits_rows,
             "rows of logits in memory at a time; 0: on a GPU 4096, of a model narrower than 4096 more, and "
             "at most 2 GiB; on the CPU 128 MiB")
      .in(0, 1e9);
  k.honoured(
       "deterministic", &c.deterministic,
       "false: attention's backward in cuDNN adds with atomics, which is faster and gives other last bits "
       "each time")
      .inert_if(!c.fp16.enabled && !c.bf16_enabled, "the model is fp32, which does without cuDNN");
  k.honoured(
       "tune_products", &c.tune_products,
       "measures eight of cuBLASLt's algorithms where a GPU meets the shape of a matrix product for the "
       "first "
       "time, and whether activations and bias gradients are faster in it, and takes the fastest; what is "
       "chosen is in --metrics, and bits may differ from run to run unless it is replayed")
      .inert_if(c.exact_sums, "cleave.exact_sums is true, and asks for the same bits in every run");
  k.honoured(
      "product_choices", &c.product_choices,
      "a --metrics file of an earlier run, whose choices of tune_products are taken instead of measured");
  k.honoured(
       "offload_update", &c.offload_update,
       "where offloaded optimizer state is updated: host (its processor, where the state lives), device "
       "(streamed through it), or auto: a GPU rank measures both at the start and takes the faster one")
      .inert_if(c.zero.offload_optimizer.device == OffloadDevice::none,
                "zero_optimization.offload_optimizer.device is none");
  describe_lora(k, c.lora);
  describe_fp8(k, c);
}

}  // namespace cleave::config
