#include "config_schema/keys.h"

namespace cleave::config {
namespace {

constexpr const char* kByTorch = "torch computes the module, unless cleave.native is true";

void describe_lora(Keys& k, LoraConfig& c) {
  k.section("cleave.lora", "low-rank adapters (LoRA); only the adapters are trained");
  k.honoured("targets", &c.targets,
             "names of the adapted linear layers, or their last parts (q_proj, mlp.down_proj); all-linear: "
             "all linear layers of the blocks")
      .or_text();
  k.honoured("rank", &c.rank, "rank of the adapter matrices").in(1, 1 << 16);
  k.honoured("alpha", &c.alpha, "the adapter output is scaled by alpha / rank").above(0);
  k.honoured("use_rslora", &c.use_rslora, "scales by alpha / sqrt(rank) (rsLoRA)")
      .inert_if(c.rank == 1, "cleave.lora.rank is 1");
  k.refused("dropout", "n=0.0", "no adapter dropout", "0");
  k.refused("use_dora", "b=false", "no DoRA");
  k.refused("bias", "s=\"none\"", "adapters do not train biases");
  k.refused("modules_to_save", "l?=null", "adapters do not train other layers", "[]");
}

void describe_record_steps(Keys& k, RecordSteps& c) {
  k.section("cleave.record_steps", "records of steps, which cleave replay computes again", Front::train);
  k.honoured("interval", &c.interval, "records steps divisible by this number, in the output folder; 0: off")
      .at_least(0);
  k.honoured("ranks", &c.ranks, "numbers of the ranks that record, such as 0,3; empty: all")
      .inert_if(c.interval == 0, "cleave.record_steps.interval is 0");
  k.honoured("keep", &c.keep, "number of newest recorded steps to keep")
      .at_least(1)
      .inert_if(c.interval == 0, "cleave.record_steps.interval is 0");
}

void describe_fp8(Keys& k, DsConfig& c) {
  k.section("cleave.fp8", "FP8 matrix products in the linear layers of transformer blocks");
  k.honoured("scaling", &c.fp8.scaling,
             "scaling of the operands before rounding to 8 bits: off, delayed (largest magnitude of earlier "
             "steps) or row (one scale per row)");
  k.honoured("history", &c.fp8.history, "number of earlier steps for delayed scaling")
      .in(1, 1024)
      .inert_if(c.fp8.scaling != Fp8Scaling::delayed, "cleave.fp8.scaling is not delayed");
}

void describe_mlflow(Keys& k, MlflowConfig& c) {
  k.section("cleave.mlflow", "MLflow run; in an Azure ML job, the run of the job");
  k.honoured("enabled", &c.enabled,
             "writes metrics of each step, the configuration and the plan to an MLflow run; needs libcurl");
  k.honoured("experiment_name", &c.experiment_name,
             "experiment of a new run; empty: MLFLOW_EXPERIMENT_NAME or MLFLOW_EXPERIMENT_ID, or Default");
  k.honoured("run_name", &c.run_name, "name of a new run; empty: MLFLOW_RUN_NAME, or the server's choice");
  k.honoured(
      "tracking_uri", &c.tracking_uri,
      "address of the MLflow server (http, https, azureml), or a folder; empty: MLFLOW_TRACKING_URI, or "
      "the folder mlruns");
}

}  // namespace

void describe_own(Keys& k, DsConfig& c) {
  k.section("cleave", "keys of Cleave");
  k.honoured("comm_timeout_s", &c.comm_timeout_s,
             "deadline of a wait for other ranks, in seconds; the error lists the missing ranks")
      .in(1, 1e6);
  k.honoured(
       "straggler_share", &c.straggler_share,
       "prints a line if a rank needs more than this share longer than its peers, without its waits for "
       "other ranks, in straggler_steps consecutive steps; 0: never")
      .in(0, 100);
  k.honoured("straggler_steps", &c.straggler_steps, "number of consecutive slow steps of a rank until a line")
      .in(1, 1e6)
      .inert_if(c.straggler_share == 0, "cleave.straggler_share is 0");
  k.honoured("replica_check_steps", &c.replica_check_steps,
             "compares the ranks' copies of each weight once in this number of steps; 0: never")
      .in(0, 1e6);
  k.honoured(
       "replica_policy", &c.replica_policy,
       "reaction to copies that differ: stop (all ranks, exit code 5), repair (overwrites the weights of "
       "the ranks that differ from the majority) or warn")
      .inert_if(c.replica_check_steps == 0, "cleave.replica_check_steps is 0");
  k.honoured("copies_in_memory", &c.copies_in_memory,
             "keeps two copies of each rank's state in host memory, so that cleave launch --max_restarts N "
             "starts a lost rank again while the others continue; repeats at most one step")
      .not_in_scripts("the engine cannot take the script's own state back by a step");
  k.honoured(
      "save_on_stop", &c.save_on_stop,
      "a PyTorch script that receives SIGTERM, SIGINT or SIGUSR1 finishes its step, saves to the folder of "
      "the last save_checkpoint call, and exits with code 75; cleave train always does this");
  k.honoured(
       "visible_gradients", &c.visible_gradients,
       "parameter.grad of a script shows the gradient between the last backward of a step and its update, "
       "which then waits for all gradients: on, off, or auto (if the script reads one in its first step)")
      .only_in(Front::scripts)
      .inert_if(c.zero.stage > 1, fmt::format("zero_optimization.stage is {}", c.zero.stage));
  k.honoured("loss_average", &c.loss_average,
             "average of a step's loss: targets (all targets with a loss have equal weight) or micro_batches "
             "(mean of the micro-batch means, as in DeepSpeed; a micro-batch without targets counts as 0)")
      .not_in_torch("its losses are means of micro-batches");
  k.honoured("weight_decay_on", &c.weight_decay_on,
             "parameters with weight decay: matrices (no biases or norms, as in Hugging Face's Trainer), all "
             "(as in DeepSpeed with model.parameters()), or name patterns such as *.weight")
      .or_text()
      .not_in_scripts("the parameter groups of its optimizer decide it")
      .inert_if(c.optimizer.weight_decay == 0, "optimizer.params.weight_decay is 0");
  k.honoured("freeze", &c.freeze,
             "frozen parameters, as name patterns such as *.mlp.* or model.embed_tokens.*; they have no "
             "gradients, masters or optimizer state")
      .or_text();
  k.honoured("native", &c.native,
             "computes a script's transformers causal language model with the engine's layers and kernels "
             "instead of torch; cleave train always does this");
  k.honoured("sequence_length", &c.sequence_length,
             "longest sample, in tokens, for cleave.native; 0: all positions of the model")
      .in(0, 1e9)
      .only_in(Front::scripts)
      .inert_if(!c.native, "cleave.native is false");
  k.honoured("exact_sums", &c.exact_sums,
             "sums gradients as 64-bit integers: same bits for any number of ranks, stages and micro-batches "
             "per rank, at equal micro-batch size; 8 bytes per parameter");
  k.honoured(
       "exact_sums_grid", &c.exact_sums_grid,
       "each micro-batch's averaged gradient is rounded to a multiple of 2 to the power of minus this value")
      .in(20, 100)
      .inert_if(!c.exact_sums, "cleave.exact_sums is false");
  k.honoured("deepspeed_stage0_loss_scale", &c.deepspeed_stage0_loss_scale,
             "at ZeRO stage 0, halves a dynamic fp16 loss scale at every overflow and continues at its "
             "minimum, as DeepSpeed does; by default stage 0 uses the rule of stages 1 to 3")
      .inert_if(!c.fp16.enabled, "fp16.enabled is false")
      .inert_if(c.fp16.loss_scale > 0, "fp16.loss_scale is fixed")
      .inert_if(c.zero.stage > 0, fmt::format("zero_optimization.stage is {}", c.zero.stage));
  k.honoured("cuda_graphs", &c.cuda_graphs,
             "launches each pass of a GPU rank as one CUDA graph: on, off, or auto (if faster in the first "
             "steps); one rank, without offload and trace")
      .not_in_torch(kByTorch)
      .inert_if(c.zero.offload_optimizer.device != OffloadDevice::none ||
                    c.zero.offload_param.device != OffloadDevice::none,
                "state or parameters are offloaded");
  k.honoured("tf32", &c.tf32, "fp32 matrix products on tensor cores, which round operands to 11 bits")
      .not_in_torch("torch.backends.cuda.matmul.allow_tf32 decides it, unless cleave.native is true")
      .inert_if(c.fp16.enabled || c.bf16_enabled, "products use 16-bit operands");
  k.honoured("logits_dtype", &c.logits_dtype,
             "type of the logits between the head and the loss; loss sums are fp32: fp32, model (type of the "
             "weights; the gradient reuses their memory) or auto (model on a GPU, fp32 on the CPU)")
      .not_in_torch(kByTorch)
      .inert_if(!c.fp16.enabled && !c.bf16_enabled, "the model is fp32");
  k.honoured("logits_rows", &c.logits_rows,
             "rows of logits in memory at a time; 0: 4096 on a GPU, more for models narrower than 4096, at "
             "most 2 GiB; 128 MiB on the CPU")
      .not_in_torch(kByTorch)
      .in(0, 1e9);
  k.honoured("deterministic", &c.deterministic,
             "false: the cuDNN attention backward adds with atomics, which is faster and changes the last "
             "bits from step to step")
      .not_in_torch(kByTorch)
      .inert_if(!c.fp16.enabled && !c.bf16_enabled, "the model is fp32, which does not use cuDNN");
  k.honoured("tune_products", &c.tune_products,
             "measures up to 32 cuBLASLt algorithms and the fused epilogues when a GPU meets a new matrix "
             "shape, and takes the fastest; --metrics records the choices, and bits may differ between "
             "runs unless they are replayed")
      .not_in_torch(kByTorch)
      .inert_if(c.exact_sums, "cleave.exact_sums is true and requires the same bits in every run");
  k.honoured("product_choices", &c.product_choices,
             "--metrics file of an earlier run; uses its tune_products choices instead of new measurements")
      .not_in_torch(kByTorch);
  k.honoured("offload_update", &c.offload_update,
             "device of the update of offloaded optimizer state: host, device (state is streamed through it) "
             "or auto (a GPU rank measures both at the start and takes the faster one)")
      .inert_if(c.zero.offload_optimizer.device == OffloadDevice::none,
                "zero_optimization.offload_optimizer.device is none");
  k.honoured(
       "non_finite", &c.non_finite,
       "a step with a loss or gradients that are not finite, in fp32 and bf16: stop (an error names "
       "the first such "
       "value), skip (a warning names it, and the next step uses the next data), or roll_back (cleave train "
       "resumes from its newest checkpoint, without the data of that step)")
      .inert_if(c.fp16.enabled && c.loss_spike == 0,
                "fp16.enabled is true, which skips steps by the loss scale");
  k.honoured("non_finite_limit", &c.non_finite_limit,
             "steps in a row that non_finite skips, or times that it rolls back, before it stops")
      .in(1, 1e6)
      .inert_if(c.non_finite == NonFinite::stop, "cleave.non_finite is stop");
  k.honoured("loss_spike", &c.loss_spike,
             "treats a step as non_finite does if its loss is larger than this factor times the median loss "
             "of the last loss_spike_steps updates; 0: off")
      .at_least(0);
  k.honoured("loss_spike_steps", &c.loss_spike_steps,
             "number of updates for the median loss of loss_spike; earlier steps are not judged")
      .in(1, 1e4)
      .inert_if(c.loss_spike == 0, "cleave.loss_spike is 0");
  k.honoured("http", &c.http,
             "port, or ADDRESS:PORT, on which rank 0 serves a page about the run, its state (/status) and "
             "metrics for "
             "Prometheus (/metrics); an address of other hosts requires CLEAVE_HTTP_TOKEN");
  describe_lora(k, c.lora);
  describe_record_steps(k, c.record_steps);
  describe_fp8(k, c);
  describe_mlflow(k, c.mlflow);
}

}  // namespace cleave::config
