// What an engine of layers is made of. For the files of Engine alone.
#pragma once
#include "device/graphs.h"
#include "runtime/engine.h"
#include "runtime/generation/texts.h"
#include "runtime/stage/executor.h"
#include "runtime/stage/pipeline_cut.h"
#include "runtime/step/engine_core.h"
#include "runtime/step_batches.h"

namespace cleave::runtime {

// Of each micro-batch of a step a number, or one for each of several layers, where passes compute it; and
// what the host reads of them, so that one wait for the device is enough for these and for others.
class MicroSums {
 public:
  MicroSums() = default;
  MicroSums(Memory& memory, bool on_gpu, Shape shape, const char* name);
  operator Tensor() const { return there_; }
  bool defined() const { return there_.defined(); }
  // Behind the stream's work so far; read where the host has waited for the stream since.
  void fetch(Stream& compute) const;
  Tensor fetched() const { return here_.defined() ? here_ : there_; }

 private:
  Buffer there_, here_;  // in pinned memory, on a GPU
};

// The layers of a rank.
struct StageComputation : Computation {
  StageComputation(const model::Model& model, const PipelineCut& pipeline, const EngineCore& core,
                   RankState& rank, Streams& streams, Memory& memory);
  zero::Visits& visits() override { return planned; }
  void show_in(Trace& trace) override { stage.show_in(trace); }
  void begin_step() override;
  void join_step() override { stage.states().join(rows, columns, compute, comm); }
  std::vector<checkpoint::Record> records(Whose whose) override;
  void clear_side_losses();
  void fetch_losses() const;  // for Engine::State::losses, behind the passes so far

  Stream &compute, &comm;
  std::vector<comm::Communicator*> rows;  // groups of ranks whose layers see different rows
  comm::Communicator& columns;            // whose layers see different columns
  const bool speaks;  // for the state of its layers, which all ranks of the data and the tensor axis have
  zero::PlannedVisits planned;
  Stage stage;
  MicroSums losses, hits;  // [1, micro-batches]
  // [layers of the model that have one, micro-batches], of the layers here; undefined where none has.
  MicroSums side_losses;
};

struct Engine::State : EngineCore {
  State(const config::DsConfig& config, const ModelFactory& make, comm::Communicator& world,
        const EngineOptions& options);
  // Streams end first: they finish what was enqueued, also when a step was given up.
  ~State() override { background.reset(), graphs.reset(), streams.reset(); }

  std::unique_ptr<Computation> computation(RankState& of, Streams& on, Memory& in) const override {
    return std::make_unique<StageComputation>(model, pipeline, *this, of, on, in);
  }
  StageComputation& layers() const { return static_cast<StageComputation&>(*computes); }
  void make_texts();
  void make_graphs();
  void open_pipe();  // collective over the pipe: what moves its messages between GPUs

  // How many targets a micro-batch of the step has in the mean over those of all ranks. Error(data), on every
  // rank, where none has any.
  double mean_targets(const StepBatches& batches);
  // The work of a step, good as long as its arguments live. divisors: what the sum of each micro-batch's
  // losses is divided by. `alike`: each one's own number of targets is put there when
  // it is made.
  Work micro_batches(const BatchSource& next, std::vector<double>& divisors, bool alike);
  // Of these terms of the ranks that share the samples of a micro-batch.
  double loss_of_place(const std::vector<double>& terms);
  // Whether this rank's losses count: the last stage's, and once a tensor axis.
  bool reports_loss() const { return layers().stage.shape().last && settings.place.tensor == 0; }
  // Whether its side losses do: those of every stage, and once a tensor axis where its ranks see the same
  // rows.
  bool reports_side_loss() const {
    return layers().side_losses.defined() && (settings.place.tensor == 0 || ranks.axes().tensor.cuts_rows());
  }
  // Whether its hits do: every part's of the classes, and where each rank has all, the first's.
  bool reports_hits() const {
    const model::Head& head = *model.head;
    return head.counts_hits() && layers().stage.shape().last &&
           settings.place.tensor * head.columns() < head.classes();
  }
  // The terms of the losses of these micro-batches of this rank, with the divisors of all; none where it
  // reports none. Each is of one layer, so that terms are the same wherever the pipe is cut. The host has
  // waited for `compute` since they were fetched.
  std::vector<double> losses(const std::vector<double>& divisors, Range micros) const;
  PipeLinks links() const { return {ranks.activations(), ranks.gradients()}; }
  Executor trainer();  // of all micro-batches of a step
  void run_forward(const pipeline::ScheduleShape& shape, const Work& work);
  // Computes the logits of the only micro-batch, written on the last stage: [rows.size(), the head's columns]
  // in host memory.
  void run_logits(Work work, const Tensor& logits, Range rows);
  void make_room_for_logits(int64_t numel);  // collective, before it, with what no rank has more of

  model::Model model;
  PipelineCut pipeline;  // of the whole model
  std::unique_ptr<Graphs> graphs;
  std::optional<Texts> texts;
  // Of a step whose micro-batches come one by one: what each loss is divided by, and the losses' terms; of
  // how many parts of a step each loss is one, and how often it is used.
  struct Begun {
    std::vector<double> divisors = {}, terms = {};
    double shares = 1;
    std::optional<double> used = {};
  };
  void agree_on_use(const Begun& step);
  std::optional<Begun> begun;
  std::vector<float> text_logits;  // of all ranks; memory of extend() that is kept from token to token
  // Of a pass on a GPU, whose kernels do not write to the host; and how many the last stage has room for.
  Buffer logits_there;
  int64_t logits_room = 0;
};

}  // namespace cleave::runtime
