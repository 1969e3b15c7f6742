// Memory for the activations of micro-batches in flight: one frame for each, a few blocks for frames that
// wait for the weight part of their backward, and the memory of a recomputed group of layers.
#pragma once
#include <deque>

#include "device/memory.h"
#include "runtime/stage/stage_layers.h"

namespace cleave::runtime {

// Activations of one micro-batch in one chunk.
struct Frame {
  int micro = -1, chunk = -1;
  int64_t rows = 0;                             // rows of incremental generation; 0: whole samples
  std::vector<Tensor> inputs;                   // inputs of the chunk's layers, then its output
  std::vector<Tensor> gradients;                // gradients of `inputs`, if the backward is split
  std::vector<model::Saved> saved, for_weight;  // by layer
  Arena keep;
  Arena home;                       // inputs of layer groups in their home, except the chunk's own input
  std::vector<Tensor> inputs_home;  // by group
  int fetched = 0, gathered = 0;    // groups from this index on are fetched, and gathered
  Event held;                       // readers and writers of a boundary on other streams are done

 private:
  friend class Frames;
  Buffer memory_, home_memory_;
  int waiting_ = -1;  // with recomputation and a split backward: index of its block until the weight part
  Arena until_weight_;
  Event idle_;
};

class Frames {
 public:
  // `layers` must outlive this object.
  explicit Frames(const StageLayers& layers) : layers_(layers), frames_(size_t(layers.shape().frames)) {}

  struct Bytes {
    int64_t keep = 0, home = 0;  // of a frame; of its inputs in their home
    int64_t waiting = 0;         // block for the weight part
    int64_t group = 0;           // memory for the layers of one group
  };
  // Before allocate: dry returns a frame of the chunk for layers that run without memory, and measured
  // records the maximum that such frames took.
  Frame dry(int chunk);
  void measured(const Frame& frame);
  // Allocates the measured memory.
  void allocate(Memory& memory);
  const Bytes& bytes() const { return bytes_; }

  // open: returns a frame for the micro-batch in the chunk, with an input that `writer` may write; throws
  // Error(internal) if all are in use. find: returns an open frame. close: frees it after the work on
  // `stream` so far.
  Frame& open(int micro, int chunk, Stream& writer, int64_t rows = 0);
  Frame& find(int micro, int chunk);
  void close(Frame& frame, Stream& stream);

  // Returns the memory for data that a backward needs in addition to the kept inputs.
  Arena& until_backward(Frame& frame);
  // Memory for the layers of one group with recomputation; begin_pass empties it.
  Arena& group() { return group_; }
  void begin_pass() { group_ = Arena(group_memory_); }

 private:
  void start(Frame& frame, int chunk, int64_t rows);

  const StageLayers& layers_;
  Bytes bytes_;
  std::vector<Frame> frames_;
  std::deque<int> free_;  // longest free first
  std::vector<Buffer> waiting_;
  std::vector<int> free_waiting_;
  Buffer group_memory_;
  Arena group_;
};

}  // namespace cleave::runtime
