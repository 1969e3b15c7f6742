// The fp32 state of this rank's slices wherever it lives: for each unit a master and the optimizer's states,
// cut into tiles. A tile in memory is a view; one on disk is read ahead of its use and written behind it.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/memory.h"
#include "device/trace.h"
#include "offload/placement.h"
#include "optim/optimizer.h"

namespace cleave::zero {

class StateHome {
 public:
  static constexpr int kMostKinds = 1 + optim::kMostStates;  // the master, and an optimizer's states
  struct Slice {
    Tensor weights;  // this rank's slice of the working copy
    std::string name;
    bool frozen = false;  // there is no state of it: walks pass over the unit
  };
  // The first round(ratio * numel) elements of every other slice get the placement's home and the others the
  // device. Where the working copy is fp32 and in the same memory, it is the master itself. On disk all tiles
  // are in one file. Throws as Memory and DiskFile do.
  StateHome(Memory& memory, const offload::Placement& placement, const std::vector<Slice>& units, int kinds);

  struct Tile {
    int unit;
    Range range;  // of the unit's slice
    MemoryKind home;
    bool last;                             // of its unit
    std::array<Tensor, kMostKinds> state;  // where it is memory; undefined beyond `kinds`
    int64_t at = 0;                        // on disk: where the kinds lie, one behind the other
  };
  // A walk calls a body for every tile of the units it visits, with its state in memory, for work that starts
  // after `ready`; the body returns the event after which it is not in use any more. For a tile on disk, the
  // kinds in the range `read` are brought and what the body left in those of `write` is kept; a tile in
  // memory always has and keeps all.
  using Body =
      std::function<Event(const Tile& tile, const std::array<Tensor, kMostKinds>& state, const Event& ready)>;
  // All units, in order. A walk in parts that is under way goes on behind it.
  void walk(Range read, Range write, const Body& body);
  // The same in parts. begin_walk, which gives up a walk that was not ended; then units in the order in which
  // they are expected: tiles on disk are read from then on, as far ahead as there are buffers. visit throws
  // what the disk said to work of the walk before, end_walk to the reads of this one, for which it waits.
  void begin_walk(Range read, Range write);
  void expect(std::span<const int> units);
  void visit(int unit, const Body& body);
  void end_walk();
  Range read() const { return walk_.read; }  // of this walk
  Range written() const { return walk_.write; }

  // Copies elements of one kind to or from fp32 memory of the host, by `compute` where they are in memory,
  // and waits. Nothing that a body enqueued is under way any more.
  void read(int unit, int kind, Range range, Tensor to, Stream& compute);
  void write(int unit, int kind, Range range, Tensor from, Stream& compute);

  void show_in(Trace& trace);  // reads and writes of walks
  int kinds() const { return kinds_; }
  const std::vector<Tile>& tiles() const { return tiles_; }
  bool separate(const Tile& tile) const;  // whether its master is not the working copy
  const offload::DiskFile* file() const { return file_.get(); }

 private:
  void lay_out(const offload::Placement& placement, const std::vector<Slice>& units);
  void keep_in_memory(Memory& memory, Tile& tile, const Slice& slice);
  void open_file(Memory& memory, const offload::DiskHome& home);
  void fetch();
  void forget_read_ahead() { walk_.fetched = walk_.used; }  // it is read again when it is visited
  template <class Move>
  void each_part(int unit, Range range, Stream& compute, const Move& move);

  int kinds_;
  std::vector<Tile> tiles_;
  std::vector<size_t> first_;  // tile of each unit, and the end
  std::vector<Tensor> weights_;
  std::vector<Buffer> buffers_;
  std::vector<size_t> on_disk_;  // indices of tiles
  std::unique_ptr<offload::DiskFile> file_;
  Trace* trace_ = nullptr;
  std::vector<Tensor> slots_;
  std::vector<Event> loaded_, stored_;  // of each slot
  struct Walk {
    Range read{}, write{};
    std::vector<size_t> tiles = {};  // on disk, in the order in which they are expected
    size_t fetched = 0, used = 0;
  } walk_;
  std::unique_ptr<Stream> reader_, writer_;  // go first: they finish what was enqueued
};

}  // namespace cleave::zero
