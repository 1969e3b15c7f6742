// Options of an engine in addition to its configuration.
#pragma once
#include <optional>

#include "device/memory.h"
#include "device/stream.h"

namespace cleave {
class Trace;  // device/trace.h
}

namespace cleave::runtime {

class StateCopies;  // runtime/step/state_copies.h

struct EngineOptions {
  uint64_t seed = 42;  // for initial weights and dropout
  MemoryLimits limits = {};
  Stream::Mode compute = Stream::Mode::inline_;  // mode of a CPU rank
  Device device = {};
  // Device stream (cudaStream_t) on which the engine of a CUDA rank computes, instead of a new stream; must
  // outlive the engine. Work that its owner enqueues before a call runs before the engine's work.
  std::optional<void*> cuda_stream = {};
  // Counts memory and messages without computing: steps can use a planned communicator (comm/planned.h) and
  // batches with unread memory. Losses and norms are zero.
  bool dry = false;
  // Inference: no gradients, masters or optimizer state, and activations live for one layer. Training
  // settings of the configuration are ignored. Weights are undefined until load_checkpoint or set_parameters;
  // train_batch and save_checkpoint throw Error(internal).
  bool inference = false;
  // Inference: number of texts with a KV cache per place on the data and sequence axes (Engine::extend).
  int64_t texts = 0;
  bool weights_follow = false;  // the caller loads weights before the first step: they start as zero
  bool updates_last = false;    // no update runs before finish_step, so weights change only there
  bool rates_given = false;     // like updates_last, and finish_step gets the learning rates
  bool scales_loss = false;  // scales the loss in fp32 as well, for passes that compute in fp16 themselves:
                             // LossScaler::of_fp32
  // Copies of the state that outlive the engine, for cleave.copies_in_memory; must outlive the engine. A dry
  // engine counts them without.
  StateCopies* copies = nullptr;
  Trace* trace = nullptr;  // traces training steps; must outlive the engine
};

}  // namespace cleave::runtime
