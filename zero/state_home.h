// The fp32 state of this rank's slices in its home: for each unit a master and the optimizer states, cut into
// tiles. A tile in memory is a view. A tile on disk is read ahead of its use and written back in the
// background.
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
  static constexpr int kMostKinds = 1 + optim::kMostStates;  // the master and the optimizer states
  struct Slice {
    Tensor weights;  // this rank's slice of the working copy
    std::string name;
    bool frozen = false;  // no state; walks skip the unit
  };
  // Places the first round(ratio * numel) elements of every slice with state in the placement's home and the
  // rest on the device. If the working copy is fp32 and in the same memory, it is also the master. All tiles
  // on disk share one file. Throws as Memory and DiskFile do.
  StateHome(Memory& memory, const offload::Placement& placement, const std::vector<Slice>& units, int kinds);

  struct Tile {
    int unit;
    Range range;  // within the unit's slice
    MemoryKind home;
    bool last;                             // of its unit
    std::array<Tensor, kMostKinds> state;  // if in memory; undefined from `kinds` on
    int64_t at = 0;                        // on disk: file offset of the kinds, which are consecutive
  };
  // A walk calls the body for every tile of the visited units with the state in memory. The work of the body
  // must start after `ready`, and the body returns the event that ends its use of the state. For a tile on
  // disk, the kinds in `read` are loaded and those in `write` are stored; a tile in memory always has and
  // keeps all kinds.
  using Body =
      std::function<Event(const Tile& tile, const std::array<Tensor, kMostKinds>& state, const Event& ready)>;
  // Walks over all units in order. An unfinished walk in parts continues afterwards.
  void walk(Range read, Range write, const Body& body);
  // Walks in parts. begin_walk abandons an unfinished walk. Then visit units in the order of `expect`, from
  // which tiles on disk are prefetched as far as the buffers allow. visit throws disk errors of the previous
  // walk; end_walk waits for the reads of this walk and throws their errors.
  void begin_walk(Range read, Range write);
  void expect(std::span<const int> units);
  void visit(int unit, const Body& body);
  void end_walk();
  Range read() const { return walk_.read; }  // of the current walk
  Range written() const { return walk_.write; }

  // Copies elements of one kind to or from fp32 host memory, by `compute` for state in memory, and waits. All
  // work enqueued by bodies must be done.
  void read(int unit, int kind, Range range, Tensor to, Stream& compute);
  void write(int unit, int kind, Range range, Tensor from, Stream& compute);

  // Moves these kinds of the tiles on the device to other memory, and frees theirs; MemoryKind::device moves
  // them back. Kinds that share the working copy stay. All work enqueued by bodies must be done, and walks
  // need the state back on the device.
  void move_from_device(Range kinds, MemoryKind to, Stream& compute);

  void show_in(Trace& trace);  // traces reads and writes of walks
  int kinds() const { return kinds_; }
  const std::vector<Tile>& tiles() const { return tiles_; }
  bool separate(const Tile& tile) const;  // true if its master is not the working copy
  const offload::DiskFile* file() const { return file_.get(); }

 private:
  void lay_out(const offload::Placement& placement, const std::vector<Slice>& units);
  void keep_in_memory(size_t tile, const Slice& slice);
  void open_file(Memory& memory, const offload::DiskHome& home);
  void fetch();
  void forget_read_ahead() { walk_.fetched = walk_.used; }  // visits read these tiles again
  template <class Move>
  void each_part(int unit, Range range, Stream& compute, const Move& move);

  struct Kept {
    size_t tile;
    int kind;
    Buffer memory;
  };

  Memory& memory_;
  int kinds_;
  std::vector<Tile> tiles_;
  std::vector<size_t> first_;  // first tile of each unit, and the end
  std::vector<Tensor> weights_;
  std::vector<Kept> kept_;  // state in memory
  Buffer slots_memory_;
  std::vector<size_t> on_disk_;  // indices of tiles
  std::unique_ptr<offload::DiskFile> file_;
  Trace* trace_ = nullptr;
  std::vector<Tensor> slots_;
  std::vector<Event> loaded_, stored_;  // by slot
  struct Walk {
    Range read{}, write{};
    std::vector<size_t> tiles = {};  // on disk, in the expected order
    size_t fetched = 0, used = 0;
  } walk_;
  std::unique_ptr<Stream> reader_, writer_;  // destroyed first: they finish enqueued work
};

}  // namespace cleave::zero
