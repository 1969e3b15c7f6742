/* The engine for other languages: plain C, so that one library serves every version of a language that can
 * call it, and nothing is compiled where it is used. A process is one rank of one job, and an engine keeps a
 * rank's share of parameters, gradients and optimizer state, while the caller computes with them
 * (runtime/unit_engine.h).
 *
 * Every function that returns int returns 0, or one of the exit codes of core/error.h; then cleave_error()
 * has what was wanted, what was got, and what to do. A call marked collective is made by all ranks, in the
 * same order. Calls of one engine come from one thread at a time; an engine's memory is valid until it is
 * freed.
 */
#pragma once
#include <stdint.h>

#if defined(__GNUC__)
#define CLEAVE_C __attribute__((visibility("default")))
#else
#define CLEAVE_C
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Of this interface: a caller that was made for another number does not go on. */
#define CLEAVE_C_VERSION 9
CLEAVE_C int cleave_c_version(void);
CLEAVE_C const char* cleave_version(void); /* of the library, "0.1.0" */
CLEAVE_C const char* cleave_error(void);   /* what the last call of this thread that failed said */

/* Texts that a call hands over belong to the caller, who frees them. */
CLEAVE_C void cleave_free_text(char* text);

enum cleave_dtype { CLEAVE_FP32 = 0, CLEAVE_FP16 = 1, CLEAVE_BF16 = 2, CLEAVE_FP64 = 3 };

/* ---- a rank and its job ---- */

typedef struct cleave_job cleave_job;

/* Finds this rank and its world in the environment, chooses its device and sizes its thread team. `options`:
 * a JSON object with any of transport, gpu_transport, device, share_gpu, threads (launcher/job.h) and
 * port_is_taken (somebody else listens at the master's port). */
CLEAVE_C int cleave_job_open(const char* options, cleave_job** job);
/* A JSON object: rank, world, local_rank, local_size, node_rank, nodes, master_addr, master_port,
 * launched_by, device ("cpu", "cuda:0"), threads; and once connected, transport. */
CLEAVE_C int cleave_job_facts(cleave_job* job, char** facts);
/* Meets the other ranks; whoever waits for another longer than timeout_s gives up. Collective. */
CLEAVE_C int cleave_job_connect(cleave_job* job, double timeout_s);
/* Ends the connection and the job. reason: what went wrong here, with which the waits of the others end;
 * null: nothing, and rank 0 waits until all have said goodbye. exit_code: of this process, after a reason; a
 * SIGTERM by which a launcher ends it earlier gives the same code. */
CLEAVE_C int cleave_job_close(cleave_job* job, const char* reason, int32_t exit_code);

/* From here on SIGINT, SIGTERM and SIGUSR1 ask for a stop, once; a second one kills. cleave_engine_make does
 * the same with cleave.save_on_stop. */
CLEAVE_C int cleave_job_catch_signals(cleave_job* job);
/* Whether any rank was asked to stop. Collective. */
CLEAVE_C int cleave_job_stop_requested(cleave_job* job, int32_t* requested);

/* Collectives over host memory, done when they return. Collective. */
CLEAVE_C int cleave_job_broadcast(cleave_job* job, void* data, int64_t bytes, int root);
CLEAVE_C int cleave_job_sum(cleave_job* job, double* values, int64_t count);
CLEAVE_C int cleave_job_barrier(cleave_job* job);

/* ---- a configuration ---- */

/* Reads a ds_config for the job's world. `read`: a JSON object with values, from the path of every key
 * ("zero_optimization.stage") to its effective value, and warnings, a line each with its position. Error
 * usage (2) with all problems where it is none. */
CLEAVE_C int cleave_job_read_config(cleave_job* job, const char* text, const char* name, char** read);
/* The same text as strict JSON, from JSON with comments or Hjson; empty if it cannot be read to its end, of
 * which cleave_job_read_config says why. Needs no job. */
CLEAVE_C int cleave_config_json(const char* text, const char* name, char** json);

/* ---- an engine ---- */

typedef struct cleave_engine cleave_engine;

/* A part of one parameter that an update brings forward, in memory that is the caller's until it returns. */
typedef struct {
  int32_t unit, parameter;
  int64_t begin, end; /* of the parameter's elements in their flat order */
  int64_t step;       /* of the updates that were applied since the optimizer began, from 1 */
  int32_t on_host;    /* host memory beside a device of another kind */
  int32_t gradient_dtype;
  double gradient_scale; /* what the gradient is multiplied with: averaging, the loss scale and clipping */
  float* value;
  void* gradient; /* may be overwritten */
  float* states[3];
} cleave_update;

typedef struct {
  uint64_t seed;
  int32_t gives;       /* of a unit's gradient in a micro-batch, at most, where sums are exact */
  int32_t rates_given; /* cleave_finish_step brings the learning rate */
  int32_t inference;   /* nothing is trained */
  int32_t scales_loss; /* of parameters in fp32, for passes in fp16 (optim/loss_scaler.h, of_fp32) */
  int32_t has_stream;  /* `stream` is a CUDA stream on which the engine computes */
  void* stream;
  int64_t device_bytes, host_bytes; /* limits; 0: none */
  /* Computes updates instead of the configuration's optimizer, where it is set, within cleave_finish_step:
   * 0, or anything else where it failed, which ends the step. `states`: names of what it keeps of every
   * element in fp32, at most three, zero before the first update. */
  int (*update)(void* context, const cleave_update* part);
  void* update_context;
  const char* const* states;
  int32_t state_count;
  /* The config.json of a published model, where the engine computes it (cleave_train_micro_batch): then
   * `units` say what the caller's model has, which has to be that of the family, and which of it is trained.
   * Null: the caller computes. */
  const char* model_config;
} cleave_engine_options;

/* Units are parameters that are gathered, reduced, moved and saved as one. `units`: JSON, a list of objects
 * with name, frozen, group (from 0: whose rates updates take, where cleave_finish_step brings those of
 * several) and parameters, each [name, shape, decay, type]: its name in the whole model, its whole shape, of
 * which more than four dims are kept as the first and the product of the others, whether weight decay
 * applies, and optionally the type that it has for the caller. Before anything else the ranks compare the
 * configuration, the units and the options: error usage (2) on all of them, which names what differs and on
 * which ranks. Units are known by their indices in the list, parameters by theirs in the unit. Values begin
 * as zero. With pipeline.stages each rank declares the units of its own layers; one that several stages
 * declare is theirs together. Collective. */
CLEAVE_C int cleave_engine_make(cleave_job* job, const char* config, const char* config_name,
                                const char* model, const char* units, const cleave_engine_options* options,
                                cleave_engine** engine);
CLEAVE_C void cleave_engine_free(cleave_engine* engine);
/* What the engines of all ranks of a job of `world` would allocate, without a job and without allocating it:
 * the plan that cleave_engine_make refuses where the ranks of this machine do not fit into its memory. plan:
 * a JSON object with model, parameters, world_size, ranks (those that are alike as one, with their memory by
 * kind and category), per_host (bytes in memory, of `ranks_per_host`), activations and table (for people).
 * activations: bytes that the caller keeps beside the engine, negative where it does not say. Error memory
 * (3) with the table where a rank exceeds the options' limits. With pipeline.stages above 1 `units` is a list
 * of what the ranks of each stage declare. */
CLEAVE_C int cleave_plan(const char* config, const char* config_name, const char* model, const char* units,
                         const cleave_engine_options* options, int32_t world, int32_t ranks_per_host,
                         int64_t activations, char** plan);
/* A JSON object: step, skipped, params, dtype, mesh and place (sizes of the axes and this rank's place on
 * each), parameters (of the whole model, from name to shape), the planned, live and peak memory by kind and
 * category, notes (texts), kinds (of state that a checkpoint saves), a table of the units, gathers and rounds
 * that no record foresaw, the loss scale that the next step begins with, the vocabulary of a model that the
 * engine computes. */
CLEAVE_C int cleave_engine_facts(cleave_engine* engine, char** facts);

/* One whole state of a parameter, fp32: kind "master" is its value, others are as the facts list them, and
 * "gradient" is that of the loss, averaged, without the loss scale and before clipping, behind the last pass
 * of a step and before cleave_finish_step. Collective. */
CLEAVE_C int cleave_get_state(cleave_engine* engine, const char* kind, const char* parameter, float* value);
/* Overwrites what this rank holds of it; every rank gives the same values, of parameters in the order of
 * their units. Masters reach the caller's passes by cleave_publish. The norm, clipping and the update are of
 * a gradient as it is then: error usage (2) where updates do not wait for all gradients. Both are collective.
 */
CLEAVE_C int cleave_put_state(cleave_engine* engine, const char* kind, const char* parameter, int64_t count,
                              float* value);
CLEAVE_C int cleave_publish(cleave_engine* engine);
/* Overwrites host memory by what the first of the ranks that have a unit has there; unit -1: of those with
 * this rank's layers. Collective over them. */
CLEAVE_C int cleave_take_first(cleave_engine* engine, int32_t unit, void* data, int64_t bytes);

/* A step is begin_step, passes, finish_step (runtime/unit_engine.h). All but acquire, release and the
 * gradients' calls are collective. micros: over how many micro-batches this step averages; 0: as many as the
 * configuration says, and no others are those of a model that the engine computes. */
CLEAVE_C int cleave_begin_step(cleave_engine* engine, int32_t micros);
/* What the loss of a micro-batch, a mean, is multiplied with before its gradients are taken. */
CLEAVE_C int cleave_scale(cleave_engine* engine, double* scale);
/* Whether a unit's parameters are elsewhere between uses; those of others stay where the first cleave_acquire
 * says. */
CLEAVE_C int cleave_gathers(cleave_engine* engine, int32_t unit, int32_t* gathers);
CLEAVE_C int cleave_begin_pass(cleave_engine* engine, int32_t kind, int32_t last);
CLEAVE_C int cleave_end_pass(cleave_engine* engine);
/* pointers: room for one of each of the unit's parameters, of the model's type on the rank's device, ready
 * for work that is enqueued on the engine's stream from now on. */
CLEAVE_C int cleave_acquire(cleave_engine* engine, int32_t unit, void** pointers);
CLEAVE_C int cleave_release(cleave_engine* engine, int32_t unit);
/* Adds a whole gradient of the loss times cleave_scale, in the rank's memory, to the unit's; it is read
 * before the call returns on a CPU, in the stream's order on a GPU. */
CLEAVE_C int cleave_add_gradient(cleave_engine* engine, int32_t unit, int32_t parameter, const void* gradient,
                                 int32_t dtype);
/* This pass adds no more to the unit: parameters to which nothing was added have gradient zero. */
CLEAVE_C int cleave_give(cleave_engine* engine, int32_t unit);

/* ---- a model that the engine computes (runtime/engine.h) ---- */

/* Samples of token ids as transformers has them: labels are those of the same positions, of which the engine
 * predicts each from the ones before it, and -100 where none is wanted. mask: null, or 1 for tokens and 0 for
 * padding, which follows them. At most train_micro_batch_size_per_gpu samples of the engine's sequence
 * length; what is less is padded. */
typedef struct {
  const int64_t *tokens, *labels, *mask; /* [samples, length] */
  int64_t samples, length;
  double items; /* what a micro-batch's sum of losses is divided by; 0: the number of its own labels */
} cleave_samples;
/* Forward and backward of the next micro-batch of a step. loss: as samples->items says, not a number where it
 * is 0 and there are no labels. Ranks of one place on the data axis give the same. Collective. */
CLEAVE_C int cleave_train_micro_batch(cleave_engine* engine, const cleave_samples* samples, double* loss);
/* The step's gradients are those of that loss times this, averaged over micro-batches and ranks: said behind
 * cleave_train_micro_batch where it is not 1. Error usage (2) where micro-batches of a step, or ranks,
 * differ. */
CLEAVE_C int cleave_use_loss(cleave_engine* engine, double times);
/* The loss alone, of any samples; nothing changes. Collective. */
CLEAVE_C int cleave_loss(cleave_engine* engine, const cleave_samples* samples, double* loss);
/* logits: [samples, length, vocabulary]. Labels are not read. Collective. */
CLEAVE_C int cleave_logits(cleave_engine* engine, const cleave_samples* samples, float* logits);

/* ---- gradients and steps ---- */

typedef struct {
  int64_t step, skipped_total;
  double loss, grad_norm, lr, loss_scale;
  int32_t skipped;
} cleave_step_result;
typedef struct {
  double lr, momentum, beta2, weight_decay; /* all but the first negative: the optimizer's own */
} cleave_rates;
/* losses: the mean of each of this rank's micro-batches, none where it has none. rates: with rates_given, of
 * as many groups as there are, else null and 0. */
CLEAVE_C int cleave_finish_step(cleave_engine* engine, const double* losses, int32_t count,
                                const cleave_rates* rates, int32_t groups, cleave_step_result* result);
/* Which of a script's parameter groups take their rates together (optim/rate_groups.h): numbers[g] is what
 * units of group g declare, merged[n] what cleave_finish_step is given of number n, with room for `count`.
 * Needs no engine. */
CLEAVE_C int cleave_rate_groups(const cleave_rates* began, const cleave_rates* now, int32_t count,
                                int32_t* numbers, cleave_rates* merged);
/* What the configuration's schedule has for the next step. */
CLEAVE_C int cleave_next_rates(cleave_engine* engine, cleave_rates* rates);

/* What a schedule has for the update behind so many others. scheduler: the section of a ds_config as JSON;
 * lr: the optimizer's own rate. Needs no engine. */
CLEAVE_C int cleave_schedule_rates(const char* scheduler, double lr, int64_t updates, cleave_rates* rates);

/* ---- a pipeline (pipeline/schedule.h, runtime/unit_engine.h) ---- */

/* How layers are divided over pieces by a method of pipeline.partition_method: first[p] is the first layer of
 * piece p, first[pieces] is `layers`. Needs no engine. */
CLEAVE_C int cleave_partition(const char* const* names, const int64_t* params, int32_t layers, int32_t pieces,
                              const char* method, int32_t* first);
/* A walk through a step or an evaluation of so many micro-batches: this rank's list, JSON, [[name, micro,
 * chunk], ...]. shapes_change: activations of one walk may have several shapes. */
CLEAVE_C int cleave_begin_walk(cleave_engine* engine, int32_t trains, int32_t micros, int32_t shapes_change,
                               char** list);
enum cleave_link { CLEAVE_ACTIVATION = 0, CLEAVE_GRADIENT = 1 };
/* To and from the neighbouring stages: the rank's memory, in the order of the engine's stream. What is said
 * of an activation's shape, a text, goes before it. */
CLEAVE_C int cleave_send(cleave_engine* engine, int32_t link, const void* data, int64_t bytes);
CLEAVE_C int cleave_receive(cleave_engine* engine, int32_t link, void* data, int64_t bytes);
CLEAVE_C int cleave_send_shape(cleave_engine* engine, int32_t chunk, const char* shape);
CLEAVE_C int cleave_receive_shape(cleave_engine* engine, int32_t chunk, char** shape);

/* ---- what is saved ---- */

/* Checkpoints (runtime/engine_base.h); what is loaded may also be of cleave train, whose parameters are found
 * under the names that transformers has for them, or of DeepSpeed. client: JSON text, what the caller stores.
 * loaded: a JSON object with the path of what was loaded, "changed", a sentence for each training setting
 * that differs from this engine's, and its client. Collective. */
CLEAVE_C int cleave_save_checkpoint(cleave_engine* engine, const char* folder, const char* tag,
                                    const char* client);
CLEAVE_C int cleave_finish_save(cleave_engine* engine);
CLEAVE_C int cleave_load_checkpoint(cleave_engine* engine, const char* folder, const char* tag,
                                    int32_t with_optimizer, char** loaded);

/* ---- a training that was saved ---- */

typedef struct cleave_checkpoint cleave_checkpoint;

/* Opens a checkpoint of this program, of a script on its engine, or of DeepSpeed's ZeRO. tag: its name in the
 * folder, or "latest". Needs no job. */
CLEAVE_C int cleave_checkpoint_open(const char* folder, const char* tag, cleave_checkpoint** checkpoint);
CLEAVE_C void cleave_checkpoint_close(cleave_checkpoint* checkpoint);
/* A JSON object: path, deepspeed (whether it wrote it), step, applied, skipped, kinds (of state), tensors
 * (from the name of each parameter to its shape), tied (pairs of another name and a parameter), client. */
CLEAVE_C int cleave_checkpoint_facts(cleave_checkpoint* checkpoint, char** facts);
/* Into which file each of so many tensors goes, from 0: consecutive ones of at most `most` bytes together
 * ("5GB"), one that is larger alone. Needs no checkpoint. */
CLEAVE_C int cleave_file_of_each(const int64_t* bytes, int32_t count, const char* most, int32_t* files);
/* A whole tensor of a kind, in fp32; `count` is its number of elements. */
CLEAVE_C int cleave_checkpoint_read(cleave_checkpoint* checkpoint, const char* kind, const char* tensor,
                                    int64_t count, float* value);

/* ---- memory of an engine as another library's tensors ---- */

/* A DLManagedTensor (dlpack.h, version 0) over memory that outlives it, the device's or the host's; its
 * deleter frees what this call made alone. */
CLEAVE_C int cleave_dlpack(cleave_engine* engine, void* data, int32_t dtype, const int64_t* shape,
                           int32_t dims, int32_t on_host, void** managed);

#ifdef __cplusplus
}
#endif
