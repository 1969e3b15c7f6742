// Where the activations of micro-batches in flight live: a frame for each, handed out and taken back, the few
// blocks of those that wait for the weights' part of their backward, and what layers of one group make when
// they run again.
#pragma once
#include <deque>

#include "device/memory.h"
#include "runtime/stage/stage_layers.h"

namespace cleave::runtime {

// What one micro-batch keeps in one chunk.
struct Frame {
  int micro = -1, chunk = -1;
  int64_t rows = 0;                             // of texts that grow; 0: whole samples
  std::vector<Tensor> inputs;                   // of every layer of the chunk, then its output
  std::vector<Tensor> gradients;                // of the same, when the backward is split
  std::vector<model::Saved> saved, for_weight;  // by layer
  Arena keep;
  Arena home;                       // of inputs of groups of layers that are away: all but the chunk's own
  std::vector<Tensor> inputs_home;  // of every group
  int fetched = 0, gathered = 0;    // from this group on they are back, and whole
  Event held;                       // who reads or writes a boundary on another stream is done

 private:
  friend class Frames;
  Buffer memory_, home_memory_;
  int waiting_ = -1;  // recomputation and a split backward: which of the blocks until the weights' part
  Arena until_weight_;
  Event idle_;
};

class Frames {
 public:
  // `layers` outlives this.
  explicit Frames(const StageLayers& layers) : layers_(layers), frames_(size_t(layers.shape().frames)) {}

  struct Bytes {
    int64_t keep = 0, home = 0;  // of a frame; of its inputs that are away
    int64_t waiting = 0;         // of a block until the weights' part
    int64_t group = 0;           // of what the layers of one group make
  };
  // Before allocate, for layers that run without memory: a frame of the chunk, and what all frames that were
  // given so have taken at most, when they are given back.
  Frame dry(int chunk);
  void measured(const Frame& frame);
  // The memory that was measured.
  void allocate(Memory& memory);
  const Bytes& bytes() const { return bytes_; }

  // A frame for the micro-batch in the chunk, whose input may be written on `writer`; Error(internal) where
  // all are in use. find: the one that was opened. close: it is free once the work on `stream` so far is
  // done.
  Frame& open(int micro, int chunk, Stream& writer, int64_t rows = 0);
  Frame& find(int micro, int chunk);
  void close(Frame& frame, Stream& stream);

  // Where what a backward needs besides the kept inputs lives.
  Arena& until_backward(Frame& frame);
  // What the layers of one group make, with recomputation; empty after begin_pass.
  Arena& group() { return group_; }
  void begin_pass() { group_ = Arena(group_memory_); }

 private:
  void start(Frame& frame, int chunk, int64_t rows);

  const StageLayers& layers_;
  Bytes bytes_;
  std::vector<Frame> frames_;
  std::deque<int> free_;  // the longest free first
  std::vector<Buffer> waiting_;
  std::vector<int> free_waiting_;
  Buffer group_memory_;
  Arena group_;
};

}  // namespace cleave::runtime
