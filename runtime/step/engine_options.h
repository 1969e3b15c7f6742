// What an engine is told beside its configuration.
#pragma once
#include <optional>

#include "device/memory.h"
#include "device/stream.h"

namespace cleave {
class Trace;  // device/trace.h
}

namespace cleave::runtime {

struct EngineOptions {
  uint64_t seed = 42;  // of initial weights and dropout
  MemoryLimits limits = {};
  Stream::Mode compute = Stream::Mode::inline_;  // of a CPU rank
  Device device = {};
  // A stream of the device (cudaStream_t) on which the engine of a CUDA rank computes, in place of one of its
  // own; it outlives the engine. What its owner enqueues there before a call is done before the engine's
  // work.
  std::optional<void*> cuda_stream = {};
  // Counts memory and messages, and computes nothing: steps may be taken over a planned communicator
  // (comm/planned.h), with batches whose memory is never read. Losses and norms come out as zero.
  bool dry = false;
  // Nothing is trained: no gradients, no masters, no optimizer state, and activations live for one layer.
  // What the configuration says of these is not read. Weights are undefined until load_checkpoint or
  // set_parameters; train_batch and save_checkpoint are errors (internal).
  bool inference = false;
  // For inference: how many texts that grow each place on the data and sequence axes keeps keys and values of
  // (Engine::extend).
  int64_t texts = 0;
  bool weights_follow = false;  // somebody brings them before the first step: they begin as zero, not drawn
  bool updates_last = false;    // no update runs ahead of finish_step, behind which alone weights are new
  bool rates_given = false;     // the same, and it brings the learning rate: the configuration's is not read
  bool scales_loss =
      false;               // in fp32, too, of passes that compute in fp16 by themselves: LossScaler::of_fp32
  Trace* trace = nullptr;  // of training steps; outlives the engine
};

}  // namespace cleave::runtime
