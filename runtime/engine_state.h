// What an engine is made of. For the files of Engine alone.
#pragma once
#include "checkpoint/background_save.h"
#include "device/graphs.h"
#include "runtime/engine.h"
#include "runtime/rank_state.h"
#include "runtime/step_batches.h"
#include "runtime/texts.h"
#include "runtime/training_state.h"

namespace cleave::runtime {

struct Engine::State {
  State(const config::DsConfig& config, const ModelFactory& make, comm::Communicator& world,
        const EngineOptions& options);
  // Streams end first: they finish what was enqueued, also when a step was given up.
  ~State() { background.reset(), graphs.reset(), streams.reset(); }

  // Throws Error(memory) on every rank of a pipe when one of its stages does not fit: their plans differ.
  void check_memory();
  // Where the configuration leaves open on which side offloaded state is updated: decides for this rank, from
  // rates that all ranks measure at once.
  void choose_update();
  void allocate();

  // Of the gradients as they are, over all ranks; the same bits however the model is cut.
  double squared_norm();
  // How many targets a micro-batch of the step has in the mean over those of all ranks. Error(data), on every
  // rank, where none has any.
  double mean_targets(const StepBatches& batches);
  // What the sum of each micro-batch's losses is divided by. Where micro-batches count alike, micro_batches()
  // puts each one's own number of targets there when it makes it.
  std::vector<double> loss_divisors(const StepBatches& batches);
  // Of a step, as long as its arguments live.
  Work micro_batches(const StepBatches& batches, double loss_scale, std::vector<double>& divisors);
  // Whether this rank's losses count: the last stage's, and once a tensor axis.
  bool reports_loss() const { return rank->stage.shape().last && settings.place.tensor == 0; }
  // Whether its hits do: every part's of the classes, and where each rank has all, the first's.
  bool reports_hits() const {
    const model::Head& head = *model.head;
    return head.counts_hits() && rank->stage.shape().last &&
           settings.place.tensor * head.columns() < head.classes();
  }
  // Over the micro-batches of all ranks, with these divisors of this rank's; rounded first when sums are
  // exact.
  double mean_loss(const std::vector<double>& divisors);
  // Whether the step must be skipped. Error(training) where training cannot go on.
  bool overflowed(const StepResult& result);
  void run_training(const Work& work);  // all micro-batches; gradients are complete behind it
  void run_forward(const pipeline::ScheduleShape& shape, const Work& work);
  // Of the only micro-batch, `logits` on the last stage: [rows.size(), the head's columns] in host memory.
  void run_logits(Work work, const Tensor& logits, Range rows);

  EngineOptions options;
  Settings settings;
  std::unique_ptr<Streams> streams;
  Ranks ranks;
  model::Model model;
  PipelineCut pipeline;  // of the whole model
  RankNeeds needs;
  EngineNotes notes;
  Memory memory;
  std::unique_ptr<RankState> rank;
  std::unique_ptr<Graphs> graphs;
  std::unique_ptr<checkpoint::BackgroundSave>
      background;  // where checkpoints are written behind the training
  optim::LossScaler scaler;
  TrainingState at;
  std::optional<Texts> texts;
  // Memory of extend() that is kept from token to token: logits of all ranks on the host, and of a pass on a
  // GPU, whose kernels do not write there.
  std::vector<float> text_logits;
  Buffer text_logits_there;
  bool whole = true;  // false: a step that threw has updated some of the state
};

}  // namespace cleave::runtime
