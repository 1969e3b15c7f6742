// Runs a rank's list of pipeline instructions. Activations travel up the pipe and gradients down on separate
// communicators, on the comm stream; only events order it against the computations.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "device/batch.h"
#include "device/graphs.h"
#include "device/trace.h"
#include "pipeline/schedule.h"
#include "runtime/stage/stage.h"

namespace cleave::runtime {

struct PipeLinks {
  comm::Communicator &activations, &gradients;  // over the pipe
};

struct Work {
  bool train = true;
  std::vector<Batch> batches;                  // one per micro-batch, the same on every rank of the pipe
  std::vector<float> scales = {};              // training: scale of each micro-batch's loss
  std::function<void(int micro)> begins = {};  // called before a micro-batch is loaded, if set
  Tensor losses = {};                          // fp64, one per micro-batch; written on the last rank
  Tensor hits = {};                            // like losses, without training
  // Inference: logits of these rows of the only micro-batch, written on the last rank (Stage::head).
  Tensor logits = {};
  Range rows = {};
  const TextPass* texts = nullptr;  // inference: rows of the only micro-batch
};

class Executor {
 public:
  // compute and comm may be the same stream. All arguments must outlive the executor. Each instruction is an
  // event of the trace, if any. `graphs` launches the stage's passes, if set.
  Executor(Stage& stage, PipeLinks links, Stream& compute, Stream& comm, Trace* trace = nullptr,
           Graphs* graphs = nullptr)
      : stage_(stage), links_(links), compute_(compute), comm_(comm), trace_(trace), graphs_(graphs) {}

  // Runs `list`, this rank's part of a schedule that passed simulate(), made by with_transfers(). only: run
  // just the instructions of this micro-batch. Requires a rank with the whole model; the other micro-batches
  // must run before or after in order.
  void run(const pipeline::InstructionList& list, const pipeline::ScheduleShape& shape, const Work& work,
           std::optional<int> only = {});

 private:
  void load(int micro, const Work& work);  // loads the next micro-batch before its first forward on this rank
  void forward(const Turn& turn, const Work& work);
  void backward(const Turn& turn, const Work& work);
  // Runs device-only work of a turn as a graph; turns of one kind enqueue the same kernels.
  void graph(pipeline::Op op, const Turn& turn, const std::function<void()>& work);

  Stage& stage_;
  PipeLinks links_;
  Stream& compute_;
  Stream& comm_;
  Trace* trace_;
  Graphs* graphs_;
  Event gradient_sent_;
};

}  // namespace cleave::runtime
