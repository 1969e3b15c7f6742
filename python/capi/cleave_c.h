/* The training engine for other languages: plain C, so that one library serves all versions of a
 * language without compiling. A process is one rank of one job. An engine holds a rank's share of
 * parameters, gradients and optimizer state; the caller computes forward and backward
 * (runtime/unit_engine.h).
 *
 * Functions that return int return 0 or an exit code of core/error.h; cleave_error() then states
 * the problem, the expected value and the action. All ranks call a collective function, in the same
 * order. One thread at a time calls the functions of an engine. The memory of an engine is valid
 * until cleave_engine_free and the deleters of all its tensors (cleave_dlpack). */
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

/* Version of this interface; callers must compare it with cleave_c_version(). */
#define CLEAVE_C_VERSION 17
CLEAVE_C int cleave_c_version(void);
CLEAVE_C const char* cleave_version(void); /* of the library, "0.1.0" */
CLEAVE_C const char* cleave_error(void);   /* message of this thread's last failed call */

/* Frees a text that a function returned; the caller owns these texts. */
CLEAVE_C void cleave_free_text(char* text);

enum cleave_dtype { CLEAVE_FP32 = 0, CLEAVE_FP16 = 1, CLEAVE_BF16 = 2, CLEAVE_FP64 = 3 };

/* ---- a rank and its job ---- */

typedef struct cleave_job cleave_job;

/* Reads rank and world from the environment, selects the device and sizes the thread team. options:
 * JSON object with any of transport, gpu_transport, device, share_gpu, threads (launcher/job.h),
 * port_is_taken (another listener uses the master's port), secret_by_pmi (the process does not use
 * MPI, so the ranks may share a secret over the launcher's PMI) and facts (an object of strings that
 * must be equal on all ranks). If a rank has no usable device, the others fail in cleave_job_connect. */
CLEAVE_C int cleave_job_open(const char* options, cleave_job** job);
/* Returns a JSON object: rank, world, local_rank, local_size, node_rank, nodes, master_addr,
 * master_port, launched_by, device ("cpu", "cuda:0"), cuda (CUDA version
 * of this build, 13000; 0 without CUDA), threads; and transport once connected. */
CLEAVE_C int cleave_job_facts(cleave_job* job, char** facts);
/* Connects the ranks; fails if a rank does not arrive within timeout_s seconds. Collective. */
CLEAVE_C int cleave_job_connect(cleave_job* job, double timeout_s);
/* Ends the connection and the job. reason: failure of this rank, which ends the waits of the
 * others; null for none, then rank 0 waits until all ranks have closed. exit_code: of this process
 * after a failure; a SIGTERM of the launcher gives the same code. */
CLEAVE_C int cleave_job_close(cleave_job* job, const char* reason, int32_t exit_code);

/* Catches SIGINT, SIGTERM and SIGUSR1 from now on: the first requests a stop, a second one kills.
 * cleave_engine_make does the same with cleave.save_on_stop. */
CLEAVE_C int cleave_job_catch_signals(cleave_job* job);
/* Returns 1 on all ranks if any rank was asked to stop. Collective. */
CLEAVE_C int cleave_job_stop_requested(cleave_job* job, int32_t* requested);

/* Collectives over host memory, complete on return. sum adds each value over the ranks. */
CLEAVE_C int cleave_job_broadcast(cleave_job* job, void* data, int64_t bytes, int root);
CLEAVE_C int cleave_job_sum(cleave_job* job, double* values, int64_t count);
CLEAVE_C int cleave_job_barrier(cleave_job* job);

/* ---- a configuration ---- */

/* Passes a warning that the caller prints on rank 0, without "warning: ", to the monitors of the engines of
 * this process, also of later ones. Needs no job. */
CLEAVE_C int cleave_note_warning(const char* text);

/* Validates a ds_config for the job's world. sections: JSON object of sections that replace those of the
 * text; null removes one; problems in them have the positions of the text. read: JSON object with values
 * (effective value by the path of each key, "zero_optimization.stage") and warnings (one line each, with the
 * position). Error usage (2) lists all problems. */
CLEAVE_C int cleave_job_read_config(cleave_job* job, const char* text, const char* name, const char* sections,
                                    char** read);
/* Converts JSON with comments or Hjson to strict JSON; empty if it cannot be parsed, in which case
 * cleave_job_read_config reports the error. Needs no job. */
CLEAVE_C int cleave_config_json(const char* text, const char* name, char** json);

/* ---- an engine ---- */

typedef struct cleave_engine cleave_engine;

/* Part of one parameter to update, in memory that the caller may use until it returns. */
typedef struct {
  int32_t unit, parameter;
  int64_t begin, end; /* range of elements in flat order */
  int64_t step;       /* number of this update, from 1; skipped steps do not count */
  int32_t on_host;    /* host memory on a job with another device */
  int32_t gradient_dtype;
  double gradient_scale; /* factor of the gradient: averaging, loss scale and clipping */
  float* value;
  void* gradient; /* may be overwritten */
  float* states[3];
} cleave_update;

typedef struct {
  uint64_t seed;
  int32_t gives;       /* most gives of a unit's gradient per micro-batch, for exact sums */
  int32_t rates_given; /* cleave_finish_step receives the learning rate */
  int32_t inference;   /* nothing is trained */
  int32_t scales_loss; /* loss scale for fp32 parameters with passes in fp16 (of_fp32, optim/loss_scaler.h) */
  int32_t
      has_stream; /* stream is the caller's CUDA stream (cleave_use_stream), on which the engine computes */
  void* stream;
  int64_t device_bytes, host_bytes; /* limits; 0: none */
  /* If set, computes updates instead of the configuration's optimizer, inside cleave_finish_step.
   * Returns 0, or another value to fail the step. states: names of its fp32 state per element, at
   * most three, zero before the first update. */
  int (*update)(void* context, const cleave_update* part);
  void* update_context;
  const char* const* states;
  int32_t state_count;
  /* config.json of a published model that the engine computes (cleave_train_micro_batch); units
   * then declare the parameters of the caller's model, which must be those of the family. Null: the
   * caller computes. */
  const char* model_config;
} cleave_engine_options;

/* Creates an engine. Units are parameters that are gathered, reduced, moved and saved together.
 * Collective.
 *
 * units: JSON list of objects with name, frozen, group (number of the rates for its updates, from
 * 0; used if cleave_finish_step receives rates of several groups), optionally whole (parameters stay
 * whole on every rank at every stage), and parameters, each [name, shape, decay, type, cut]: name and
 * shape in the whole model, weight decay, and optionally the caller's type, and what the tensor axis cuts:
 * [dim, [extents]] for a parameter that consists of blocks of these extents in dim, of which this rank has
 * equal parts; [] for a whole parameter whose gradients the axis must sum; null for others, which have equal
 * gradients on the ranks of the axis. Passes then have this rank's part, and states the whole parameter.
 * Shapes with more than four dims keep the first three and the product of the others. A frozen unit with
 * `bytes`: true has parameters of other types, whose shapes are their sizes in 64-bit words; states of these
 * are their bytes (cleave_get_bytes). With pipeline.stages,
 * each rank declares the units of its layers; stages that declare the same unit share it.
 *
 * Units are identified by their index in the list, parameters by their index in the unit. Values
 * begin as zero. First, the ranks compare configuration, units and options: error usage (2) on all
 * ranks states the difference and the ranks. */
CLEAVE_C int cleave_engine_make(cleave_job* job, const char* config, const char* config_name,
                                const char* model, const char* units, const cleave_engine_options* options,
                                cleave_engine** engine);
CLEAVE_C void cleave_engine_free(cleave_engine* engine);
/* Sets the CUDA stream on which the caller works from now on, at first that of the options. A function of
 * an engine behaves like work that is enqueued on this stream: it starts after the stream's earlier work,
 * and later work of the stream sees its results and may reuse the memory that it was given. Streams must
 * outlive the engine. No effect on a CPU. */
CLEAVE_C int cleave_use_stream(cleave_engine* engine, void* stream);
/* Plans the memory of the engines of all ranks, without a job and without allocating.
 * cleave_engine_make fails if this plan does not fit in the memory of the host.
 *
 * plan: JSON object with model, parameters, world_size, ranks (equal ranks once, with their memory
 * by kind and category), per_host (bytes per kind, of ranks_per_host), activations, reserve (bytes that
 * a GPU needs outside of the plan: of cuda, and of torch if the activations are known) and table (text).
 * activations: bytes that the caller keeps in addition to the engine, negative if unknown. With
 * pipeline.stages above 1, units is a list with the declaration of each stage. Error memory (3), with the
 * table, if a rank exceeds the limits in options. */
CLEAVE_C int cleave_plan(const char* config, const char* config_name, const char* model, const char* units,
                         const cleave_engine_options* options, int32_t world, int32_t ranks_per_host,
                         int64_t activations, char** plan);
/* Returns a JSON object: step, skipped, params, dtype, mesh and place (sizes of the axes, and this
 * rank's coordinate), parameters (shapes by name, whole model), planned, live and peak memory by
 * kind and category, notes (texts), kinds (state kinds in checkpoints), a table of the units,
 * gathers and rounds that no record predicted, the loss scale of the next step, the vocabulary of a
 * model that the engine computes, and reports (true if this rank must call cleave_report_step). */
CLEAVE_C int cleave_engine_facts(cleave_engine* engine, char** facts);

/* Reads one whole state of a parameter in fp32. kind: "master" for the value, one of the facts'
 * kinds, or "gradient" for the gradient of the loss, averaged, unscaled and before clipping,
 * between the last pass of a step and cleave_finish_step. Collective. */
CLEAVE_C int cleave_get_state(cleave_engine* engine, const char* kind, const char* parameter, float* value);
/* Reads the elements of a parameter's master that this rank updates, in fp32; the others become NaN. Not
 * collective. */
CLEAVE_C int cleave_own_master(cleave_engine* engine, const char* parameter, float* value);
/* Overwrites this rank's part of a state; all ranks pass the same values. Parameters must come in
 * the order of their units. cleave_publish makes new masters visible to passes. Norm, clipping and
 * update use a gradient that was set; error usage (2) if updates do not wait for all gradients.
 * Both are collective. */
CLEAVE_C int cleave_put_state(cleave_engine* engine, const char* kind, const char* parameter, int64_t count,
                              float* value);
CLEAVE_C int cleave_publish(cleave_engine* engine);
/* Like cleave_get_state and cleave_put_state for a parameter of a unit with `bytes`. bytes: size of the
 * caller's tensor, which need not be whole words. */
CLEAVE_C int cleave_get_bytes(cleave_engine* engine, const char* parameter, int64_t bytes, void* value);
CLEAVE_C int cleave_put_bytes(cleave_engine* engine, const char* parameter, int64_t bytes, const void* value);
/* Overwrites host memory with the data of the first rank that has the unit; unit -1: of the first
 * rank with this rank's layers. Collective over these ranks. */
CLEAVE_C int cleave_take_first(cleave_engine* engine, int32_t unit, void* data, int64_t bytes);

/* A step is begin_step, passes, finish_step (runtime/unit_engine.h). All are collective except
 * acquire, release and the gradient functions. micros: number of micro-batches that this step
 * averages; 0: as configured, which is required for a model that the engine computes. */
CLEAVE_C int cleave_begin_step(cleave_engine* engine, int32_t micros);
/* Makes updates of the next steps wait for cleave_finish_step, also if they need not know the norm
 * of all gradients first. */
CLEAVE_C int cleave_wait_with_updates(cleave_engine* engine, int32_t waits);
/* Between the last pass of a step and cleave_finish_step, if updates wait: gives every rank the
 * whole gradients, averaged, unscaled and before clipping. Norm, clipping and update use changes of
 * them. Error usage (2) at stages 2 and 3. Collective. */
CLEAVE_C int cleave_show_gradients(cleave_engine* engine);
/* After that, returns the addresses of a unit's gradients on the rank's device, and their type; they
 * are null for a frozen unit. pointers: one per parameter. */
CLEAVE_C int cleave_shown_gradients(cleave_engine* engine, int32_t unit, void** pointers, int32_t* dtype);
/* Between passes of a step before its last one: returns the gradient of this rank's own loss in fp32,
 * averaged over its micro-batches and unscaled, at stages 0 and 1. Elements of other tensor-parallel ranks
 * are zero. Not collective. */
CLEAVE_C int cleave_own_gradient(cleave_engine* engine, const char* parameter, float* value);
/* Between passes of a step, before its gradients are read or shown, forgets them; at stages 2 and 3 on all
 * ranks. Another pass may then be the last. */
CLEAVE_C int cleave_discard_gradients(cleave_engine* engine);
/* Makes updates leave these parameters and their state unchanged, as if they were frozen, and no
 * others. names: JSON list of strings, equal on all ranks of a stage. */
CLEAVE_C int cleave_pause(cleave_engine* engine, const char* names);
/* Moves masters and optimizer states from the device to host memory (runtime/unit_engine.h). They return
 * with cleave_reload_states, and by themselves when a step or a change of weights needs them. pinned:
 * page-locked memory. */
CLEAVE_C int cleave_offload_states(cleave_engine* engine, int32_t masters, int32_t states, int32_t pinned);
CLEAVE_C int cleave_reload_states(cleave_engine* engine);
/* Returns the position of a training as JSON; cleave_set_position continues there with another
 * engine of the same parameters, after cleave_put_state. fresh: JSON list of the trained parameters
 * whose optimizer state begins there. Collective. */
CLEAVE_C int cleave_position(cleave_engine* engine, char** position);
CLEAVE_C int cleave_set_position(cleave_engine* engine, const char* position, const char* fresh);
/* Returns the factor to multiply a micro-batch's mean loss with before the backward. */
CLEAVE_C int cleave_scale(cleave_engine* engine, double* scale);
/* Returns the loss scale of the next step, 1 without loss scaling. */
CLEAVE_C int cleave_loss_scale(cleave_engine* engine, double* scale);
/* Returns 1 if the parameters of a unit move between uses. Others stay at the addresses of the
 * first cleave_acquire. */
CLEAVE_C int cleave_gathers(cleave_engine* engine, int32_t unit, int32_t* gathers);
CLEAVE_C int cleave_begin_pass(cleave_engine* engine, int32_t kind, int32_t last);
CLEAVE_C int cleave_end_pass(cleave_engine* engine);
/* Ends a pass that fails on this rank; cleave_end_pass then fails on the other data-parallel ranks with error
 * training (5). All ranks must call cleave_discard_gradients before other gradients of the step. */
CLEAVE_C int cleave_abandon_pass(cleave_engine* engine);
/* Returns the addresses of a unit's parameters, in the type of the model on the rank's device,
 * valid for work that is enqueued on the engine's stream from now on. They are the same each time if all
 * units that gather have at most zero_optimization.stage3_max_live_parameters elements. pointers: one per
 * parameter. */
CLEAVE_C int cleave_acquire(cleave_engine* engine, int32_t unit, void** pointers);
CLEAVE_C int cleave_release(cleave_engine* engine, int32_t unit);
/* Adds whole gradients of the loss times cleave_scale, in the rank's memory, to the unit, and ends this
 * pass's additions to it. They are read before the call returns on a CPU, and in stream order on a GPU.
 * gradients and dtypes: one per parameter; null for a gradient of zero. */
CLEAVE_C int cleave_give(cleave_engine* engine, int32_t unit, const void* const* gradients,
                         const int32_t* dtypes);

/* ---- a model that the engine computes (runtime/engine.h) ---- */

/* Samples of token ids as in transformers: labels belong to their positions, the engine predicts
 * each from the previous tokens, and -100 is ignored. mask: null, or 1 for tokens and 0 for
 * padding, which comes last. At most train_micro_batch_size_per_gpu samples of the engine's
 * sequence length; the rest is padded. */
typedef struct {
  const int64_t *tokens, *labels, *mask; /* [samples, length] */
  int64_t samples, length;
  double items; /* divisor of a micro-batch's loss sum; 0: its number of labels */
} cleave_samples;
/* Runs forward and backward of the next micro-batch of a step. loss: as samples->items says, NaN
 * for 0 without labels. Ranks with the same data coordinate pass the same samples. Collective. */
CLEAVE_C int cleave_train_micro_batch(cleave_engine* engine, const cleave_samples* samples, double* loss);
/* Multiplies the gradients of the last cleave_train_micro_batch with a factor; needed if it is not
 * 1. Error usage (2) if micro-batches of a step, or ranks, differ. */
CLEAVE_C int cleave_use_loss(cleave_engine* engine, double times);
/* Computes only the loss, of any samples; changes nothing. Collective. */
CLEAVE_C int cleave_loss(cleave_engine* engine, const cleave_samples* samples, double* loss);
/* logits: [samples, length, vocabulary]. Labels are ignored. Collective. */
CLEAVE_C int cleave_logits(cleave_engine* engine, const cleave_samples* samples, float* logits);

/* ---- gradients and steps ---- */

typedef struct {
  int64_t step, skipped_total;
  double loss, grad_norm, lr, loss_scale;
  int32_t skipped;
} cleave_step_result;
typedef struct {
  double lr, momentum, beta2, weight_decay; /* all but lr: negative keeps the optimizer's own */
} cleave_rates;
/* Reduces, clips and updates. losses: mean of each of this rank's micro-batches, none on ranks
 * without losses. rates: with rates_given, one per group; otherwise null and 0. */
CLEAVE_C int cleave_finish_step(cleave_engine* engine, const double* losses, int32_t count,
                                const cleave_rates* rates, int32_t groups, cleave_step_result* result);
/* Reports a finished step, if the facts have `reports`: adds points to the curves of the configuration's
 * monitors (monitor/monitors.h) at `samples`, the number of trained samples. line: a text to print on rank 0,
 * as steps_per_print, memory_breakdown, wall_clock_breakdown, flops_profiler and comms_logger ask; empty on
 * other steps and ranks. Collective with the last three. */
CLEAVE_C int cleave_report_step(cleave_engine* engine, const cleave_step_result* result, int64_t samples,
                                char** line);
/* Returns the rest of the text after the last step. */
CLEAVE_C int cleave_report_end(cleave_engine* engine, char** text);
/* Returns the table of comms_logger up to now; empty if it is off. */
CLEAVE_C int cleave_collectives(cleave_engine* engine, char** table);
/* Starts or stops a timer of wall_clock_breakdown: fwd, bwd, bwd_inner or step (monitor/time_columns.h).
 * First waits for the work that the caller and the engine have enqueued. */
CLEAVE_C int cleave_time(cleave_engine* engine, const char* timer, int32_t begins);
/* Takes the layers of a step that flops_profiler measures from a caller that computes, before
 * cleave_report_step. layers: JSON object with rows, [[name, parameters, operations, milliseconds of the
 * forwards, and of the backwards], ...] without overlap, and facts, a list of texts about the measurement. */
CLEAVE_C int cleave_give_profile(cleave_engine* engine, const char* layers);
/* Adds a point to the curve `tag` of these monitors, on rank 0. */
CLEAVE_C int cleave_write_scalar(cleave_engine* engine, const char* tag, double value, int64_t samples);
/* Returns the events since the last call as a JSON list (monitor/event_queue.h), on rank 0 of a configuration
 * with wandb.enabled; otherwise an empty list. wait: first waits, at most 5 s, for events of earlier calls.
 */
CLEAVE_C int cleave_take_events(cleave_engine* engine, int32_t wait, char** events);
/* Returns 1 on rank 0 if the configuration has monitors. */
CLEAVE_C int cleave_has_monitors(cleave_engine* engine, int32_t* has);
/* Merges a script's parameter groups with equal rates (optim/rate_groups.h). numbers[g]: group
 * number for units of group g. merged[n]: rates of number n for cleave_finish_step; has room for
 * count. Needs no engine. */
CLEAVE_C int cleave_rate_groups(const cleave_rates* began, const cleave_rates* now, int32_t count,
                                int32_t* numbers, cleave_rates* merged);
/* Returns the rates of the configuration's schedule for the next step. */
CLEAVE_C int cleave_next_rates(cleave_engine* engine, cleave_rates* rates);
/* Replaces the scheduled learning rate of the next update only. */
CLEAVE_C int cleave_set_next_lr(cleave_engine* engine, double lr);

/* Returns the rates of a schedule after a number of updates. scheduler: section of a ds_config as
 * JSON; lr: the optimizer's own rate. Needs no engine. */
CLEAVE_C int cleave_schedule_rates(const char* scheduler, double lr, int64_t updates, cleave_rates* rates);

/* ---- a pipeline (pipeline/schedule.h, runtime/unit_engine.h) ---- */

/* Divides layers into pieces by a pipeline.partition_method. first[p]: first layer of piece p;
 * first[pieces] is layers. Needs no engine. */
CLEAVE_C int cleave_partition(const char* const* names, const int64_t* params, int32_t layers, int32_t pieces,
                              const char* method, int32_t* first);
/* Begins a step or an evaluation of a number of micro-batches and returns this rank's instructions
 * as JSON, [[name, micro, chunk], ...]. shapes_change: activations of one walk may have different
 * shapes. */
CLEAVE_C int cleave_begin_walk(cleave_engine* engine, int32_t trains, int32_t micros, int32_t shapes_change,
                               char** list);
enum cleave_link { CLEAVE_ACTIVATION = 0, CLEAVE_GRADIENT = 1 };
/* Exchange the rank's memory with the neighboring stages, in the order of the engine's stream. The
 * shape of an activation, as text, is sent first. */
CLEAVE_C int cleave_send(cleave_engine* engine, int32_t link, const void* data, int64_t bytes);
CLEAVE_C int cleave_receive(cleave_engine* engine, int32_t link, void* data, int64_t bytes);
CLEAVE_C int cleave_send_shape(cleave_engine* engine, int32_t chunk, const char* shape);
CLEAVE_C int cleave_receive_shape(cleave_engine* engine, int32_t chunk, char** shape);

/* ---- checkpoints of an engine ---- */

/* Save and load checkpoints (runtime/engine_base.h), including those of cleave train, which have
 * the parameter names of transformers, and of DeepSpeed. client: JSON text of the caller. loaded:
 * JSON object with the path and client of the checkpoint, and "changed": one sentence for each training
 * setting that differs from this engine. parts: sum of CLEAVE_LOAD_ values, in addition to the weights:
 * optimizer state, position of the learning-rate schedule, number of steps and loss scale (required by
 * the other two). Other parts stay unchanged. Collective. */
#define CLEAVE_LOAD_OPTIMIZER 1
#define CLEAVE_LOAD_SCHEDULE 2
#define CLEAVE_LOAD_STEPS 4
CLEAVE_C int cleave_save_checkpoint(cleave_engine* engine, const char* folder, const char* tag,
                                    const char* client);
CLEAVE_C int cleave_finish_save(cleave_engine* engine);
CLEAVE_C int cleave_load_checkpoint(cleave_engine* engine, const char* folder, const char* tag, int32_t parts,
                                    char** loaded);

/* ---- reading checkpoints ---- */

typedef struct cleave_checkpoint cleave_checkpoint;

/* Opens a checkpoint of cleave train, of a script with this engine, or of DeepSpeed ZeRO. tag: its
 * name in the folder, or "latest". Needs no job. */
CLEAVE_C int cleave_checkpoint_open(const char* folder, const char* tag, cleave_checkpoint** checkpoint);
CLEAVE_C void cleave_checkpoint_close(cleave_checkpoint* checkpoint);
/* Returns a JSON object: path, deepspeed (true if DeepSpeed wrote it), step, applied, skipped,
 * kinds (of state), tensors (shapes by parameter name), tied (pairs of another name and a
 * parameter), client. */
CLEAVE_C int cleave_checkpoint_facts(cleave_checkpoint* checkpoint, char** facts);
/* Assigns tensors to files, from 0: consecutive tensors of together at most `most` bytes ("5GB"); a
 * larger tensor is alone in its file. Needs no checkpoint. */
CLEAVE_C int cleave_file_of_each(const int64_t* bytes, int32_t count, const char* most, int32_t* files);
/* Reads a whole tensor of a kind in fp32; count: its number of elements. */
CLEAVE_C int cleave_checkpoint_read(cleave_checkpoint* checkpoint, const char* kind, const char* tensor,
                                    int64_t count, float* value);
/* Reads a parameter of a unit with `bytes`; bytes: its size. */
CLEAVE_C int cleave_checkpoint_read_bytes(cleave_checkpoint* checkpoint, const char* tensor, int64_t bytes,
                                          void* value);

/* ---- engine memory as tensors of another library ---- */

/* Returns a DLManagedTensor (dlpack.h, version 0) over device or host memory of the engine. Until
 * its deleter is called, the memory of the engine is not freed. */
CLEAVE_C int cleave_dlpack(cleave_engine* engine, void* data, int32_t dtype, const int64_t* shape,
                           int32_t dims, int32_t on_host, void** managed);

#ifdef __cplusplus
}
#endif
