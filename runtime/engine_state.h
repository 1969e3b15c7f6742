// Private state of Engine, for the source files of Engine only.
#pragma once
#include "device/graphs.h"
#include "runtime/engine.h"
#include "runtime/generation/texts.h"
#include "runtime/stage/executor.h"
#include "runtime/stage/pipeline_cut.h"
#include "runtime/step/engine_core.h"

namespace cleave::runtime {

// Device accumulators for each micro-batch of a step, one row or one row per layer, and their host copy. One
// wait for the device covers these and other fetches.
class MicroSums {
 public:
  MicroSums() = default;
  MicroSums(Memory& memory, bool on_gpu, Shape shape, const char* name);
  operator Tensor() const { return there_; }
  bool defined() const { return there_.defined(); }
  // Copies to the host after the stream's work so far. Read after the host has waited for the stream.
  void fetch(Stream& compute) const;
  Tensor fetched() const { return here_.defined() ? here_ : there_; }

 private:
  Buffer there_, here_;  // here_ is in pinned memory, on a GPU
};

// Computation of the layers of a rank.
struct StageComputation : Computation {
  StageComputation(const model::Model& model, const PipelineCut& pipeline, const EngineCore& core,
                   RankState& rank, Streams& streams, Memory& memory);
  zero::Visits& visits() override { return planned; }
  void show_in(Trace& trace) override { stage.show_in(trace); }
  void begin_step() override;
  void join_step() override { stage.states().join(rows, columns, compute, comm); }
  std::vector<checkpoint::Record> records(Whose whose) override;
  void clear_side_losses();
  void fetch_losses() const;  // fetches the values for Engine::State::losses, after the passes so far

  Stream &compute, &comm;
  std::vector<comm::Communicator*> rows;  // groups of ranks with different rows in their layers
  comm::Communicator& columns;            // ranks with different columns in their layers
  const bool speaks;  // saves the state of its layers, which all ranks of the data and tensor axes share
  zero::PlannedVisits planned;
  Stage stage;
  MicroSums losses, hits;  // [1, micro-batches]
  // [layers of the model with a side loss, micro-batches], filled for local layers; undefined if no layer has
  // one.
  MicroSums side_losses;
};

struct Engine::State : EngineCore {
  State(const config::DsConfig& config, const ModelFactory& make, comm::Communicator& world,
        const EngineOptions& options);
  // Destroys streams first: they finish enqueued work, also after an aborted step.
  ~State() override { copier.reset(), background.reset(), graphs.reset(), streams.reset(); }

  std::unique_ptr<Computation> computation(RankState& of, Streams& on, Memory& in) const override {
    return std::make_unique<StageComputation>(model, pipeline, *this, of, on, in);
  }
  StageComputation& layers() const { return static_cast<StageComputation&>(*computes); }
  std::string first_bad_layer(int64_t micro) override;
  void make_texts();
  void make_graphs();

  // Returns the mean number of targets per micro-batch of the step over all ranks. Throws Error(data) on
  // every rank if no micro-batch has a target.
  double mean_targets(std::span<const Batch> batches);
  // Returns the work of the step that has begun. divisors: divisor of the loss sum of each micro-batch.
  Work work_of(std::span<const Batch> batches, const std::vector<double>& divisors);
  // Returns the loss from the terms of the ranks that share the samples of a micro-batch.
  double loss_of_place(const std::vector<double>& terms);
  // True if this rank's losses count: on the last stage, once per tensor axis.
  bool reports_loss() const { return layers().stage.shape().last && settings.place.tensor == 0; }
  // True if its side losses count: on every stage, once per tensor axis if its ranks see the same rows.
  bool reports_side_loss() const {
    return layers().side_losses.defined() && (settings.place.tensor == 0 || ranks.axes().tensor.cuts_rows());
  }
  // True if its hits count: on each rank with a part of the classes, or on the first if each rank has all
  // classes.
  bool reports_hits() const {
    const model::Head& head = *model.head;
    return head.counts_hits() && layers().stage.shape().last &&
           settings.place.tensor * head.columns() < head.classes();
  }
  // Returns the loss terms of these micro-batches on this rank, given the divisors of all; empty if the rank
  // reports none. Each term belongs to one layer, so terms are equal for every cut of the pipeline. The host
  // must have waited for `compute` since they were fetched.
  std::vector<double> losses(const std::vector<double>& divisors, Range micros) const;
  PipeLinks links() const { return {ranks.activations(), ranks.gradients()}; }
  Executor trainer();  // for all micro-batches of a step
  void run_forward(const pipeline::ScheduleShape& shape, const Work& work);
  // Computes the logits of a single micro-batch, written on the last stage: [rows.size(), the head's columns]
  // in host memory.
  void run_logits(Work work, const Tensor& logits, Range rows);
  void make_room_for_logits(int64_t numel);  // collective; before run_logits, maximum over ranks

  model::Model model;
  PipelineCut pipeline;  // of the whole model
  std::unique_ptr<Graphs> graphs;
  std::optional<Texts> texts;
  // Step with micro-batches that arrive one by one: the divisor and the terms of each loss. shares: number of
  // parts of a step that one loss stands for. used: factor of use_loss.
  struct Begun {
    std::vector<double> divisors = {}, terms = {};
    double shares = 1;
    std::optional<double> used = {};
  };
  void agree_on_use(const Begun& step);
  std::span<const Batch> current;  // micro-batches of train_batch, while it runs
  std::function<void()> seen;      // of on_gradients
  bool sees_gradients = false;     // while it runs
  std::optional<Begun> begun;
  std::vector<float> text_logits;  // of all ranks; kept by extend() from token to token
  // Device buffer for logits on a GPU, because its kernels do not write to the host, and its capacity on the
  // last stage.
  Buffer logits_there;
  int64_t logits_room = 0;
};

}  // namespace cleave::runtime
