// Runs a rank's list of pipeline instructions: one switch. Activations travel up the pipe and gradients down
// on communicators of their own, on the comm stream; only events order it against the computations.
#pragma once
#include <functional>
#include <optional>

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
  BatchSource batch;                      // called once a micro-batch, in order, on every rank
  std::function<float(int micro)> scale;  // training: of the micro-batch's loss, asked for after its batch
  Tensor losses = {};                     // fp64, one a micro-batch; written on the last rank
  Tensor hits = {};                       // the same, without training
  // Where nothing is trained: the logits of these rows of the only micro-batch, written on the last rank
  // (Stage::head).
  Tensor logits = {};
  Range rows = {};
  const TextPass* texts = nullptr;  // without training: the only micro-batch is of these rows
};

class Executor {
 public:
  // compute and comm may be the same stream. Everything must outlive the executor. Each instruction is an
  // event of the trace, where there is one. Passes over the stage are launched by `graphs`, where there are.
  Executor(Stage& stage, PipeLinks links, Stream& compute, Stream& comm, Trace* trace = nullptr,
           Graphs* graphs = nullptr)
      : stage_(stage), links_(links), compute_(compute), comm_(comm), trace_(trace), graphs_(graphs) {}

  // `list` is this rank's of a schedule that simulate() proves, made by with_transfers(). only: of it the
  // instructions of this micro-batch alone, where the rank has the whole model and the others' go before or
  // follow in their order.
  void run(const pipeline::InstructionList& list, const pipeline::ScheduleShape& shape, const Work& work,
           std::optional<int> only = {});

 private:
  void load(int micro, const Work& work);  // the next micro-batch, before its first forward here
  void forward(const Turn& turn, const Work& work);
  void backward(const Turn& turn, const Work& work);
  // Work of a turn on the device alone, as a graph; turns of one kind enqueue the same kernels.
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
