#include "tests/cuda_interpreter/shared_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/cuda_interpreter/settings.h"
#include "tests/cuda_interpreter/warp.h"

namespace interpreter {

SharedMemory::SharedMemory() : checks_(setting("RACES", 1) != 0) {}

void SharedMemory::resize(uint32_t bytes) {
  bytes_ = bytes;
  if (memory_.size() < bytes) memory_.resize(bytes);
  if (cells_.size() < bytes / 2 + 8) cells_.resize(bytes / 2 + 8);
  if (now_ > uint32_t{1} << 31) cells_.assign(cells_.size(), {}), now_ = 1;
}

// Invalidates earlier accesses without erasing them.
void SharedMemory::begin_block() {
  begun_ = ++now_;
  for (auto& of : seen_) of.fill(begun_);
  std::fill_n(memory_.begin(), bytes_, std::byte{0xff});
}

// Each warp takes over the knowledge of the others.
void SharedMemory::order(uint32_t warps) {
  ++now_;
  std::array<uint32_t, 32> joined{};
  for (uint32_t m = warps; m; m &= m - 1)
    for (size_t v = 0; v < 32; ++v) joined[v] = std::max(joined[v], seen_[size_t(std::countr_zero(m))][v]);
  for (uint32_t m = warps; m; m &= m - 1) joined[size_t(std::countr_zero(m))] = now_;
  for (uint32_t m = warps; m; m &= m - 1) seen_[size_t(std::countr_zero(m))] = joined;
}

[[noreturn, gnu::noinline]] void SharedMemory::fail_bounds(Warp& w, int lane, uint32_t at, uint32_t bytes,
                                                           bool write) const {
  const std::string what = std::string(write ? "writes " : "reads ") + std::to_string(bytes) +
                           " bytes of shared memory at " + std::to_string(int64_t(at) - kBegin);
  if (at % bytes) w.fail(what + ", which is not aligned", lane);
  w.fail(what + ", which the block has " + std::to_string(bytes_) + " of", lane);
}

inline bool SharedMemory::seen(const Warp& w, int thread, uint32_t time) const {
  return time < seen_[size_t(w.index)][size_t(thread) / 32];
}

static std::string place(int thread, int line) {
  return "thread " + std::to_string(thread) + " in line " + std::to_string(line);
}

// Keeps the readers of a cell that are not ordered before a later reader.
inline void SharedMemory::note_read(const Warp& w, int thread, Cell& c) {
  const uint32_t mine = 1u << w.index;
  if (c.readers == mine) {  // the most common case
    if (c.reader != thread)
      c.reader = c.read >= seen_[size_t(w.index)][size_t(w.index)] ? kMany : uint16_t(thread);
    c.read = now_;
    return;
  }
  bool beside = false;
  if (c.read >= begun_)
    for (uint32_t m = c.readers; m && !beside; m &= m - 1)
      beside = c.read >= seen_[size_t(w.index)][size_t(std::countr_zero(m))];
  if (beside) {
    c.readers |= mine;
    if (c.reader != thread) c.reader = kMany;
  } else {
    c.readers = mine, c.reader = uint16_t(thread);
  }
  c.read = now_;
}

[[noreturn, gnu::noinline]] void SharedMemory::fail_read(Warp& w, int lane, const Cell& c,
                                                         uint32_t at) const {
  const std::string where = ", byte " + std::to_string(at);
  if (c.written < begun_) w.fail("reads shared memory that was never written" + where, lane);
  if (c.kind == Kind::coming)
    w.fail("reads shared memory that a copy without a wait is still bringing" + where, lane);
  w.fail("reads shared memory that was written by " + place(c.writer, c.line) + " without a barrier between" +
             where,
         lane);
}

const std::byte* SharedMemory::checked_read(Warp& w, int lane, uint32_t at, uint32_t bytes) {
  if (!in_bounds(at, bytes)) fail_bounds(w, lane, at, bytes, false);
  const int thread = w.thread(lane);
  Cell* c = cell(at);
  for (Cell* end = cell(at + bytes + (bytes & 1)); c != end; ++c) {
    const bool ordered = c->writer == thread || seen(w, c->writer, c->written);
    if (c->written < begun_ || c->kind == Kind::coming || !ordered) [[unlikely]]
      fail_read(w, lane, *c, at - kBegin);
    note_read(w, thread, *c);
  }
  return data() + (at - kBegin);
}

// Writing the current value again is not a race.
void SharedMemory::check_write(Warp& w, int lane, Cell& c, uint32_t at, bool same) {
  const int thread = w.thread(lane);
  if (c.written >= begun_) {
    if (c.kind == Kind::coming)
      w.fail("writes shared memory into which a copy is on its way, byte " + std::to_string(at), lane);
    if (!same && c.writer != thread && !seen(w, c.writer, c.written))
      w.fail("overwrites shared memory that was written by " + place(c.writer, c.line) +
                 " without a barrier between, byte " + std::to_string(at),
             lane);
  }
  if (c.read < begun_ || same) return;
  for (uint32_t m = c.readers; m; m &= m - 1) {
    const int reader = std::countr_zero(m);
    const bool own = reader == w.index && c.reader == thread;
    if (!own && c.read >= seen_[size_t(w.index)][size_t(reader)])
      w.fail("overwrites shared memory that warp " + std::to_string(reader) +
                 " read without a barrier between, byte " + std::to_string(at),
             lane);
  }
}

std::byte* SharedMemory::checked_write(Warp& w, int lane, uint32_t at, uint32_t bytes, const void* value,
                                       Kind kind) {
  if (!in_bounds(at, bytes)) fail_bounds(w, lane, at, bytes, true);
  std::byte* to = data() + (at - kBegin);
  const bool same = value && std::memcmp(to, value, bytes) == 0;
  const int line = w.block->launch->kernel->code[size_t(w.pc - 1)].line;
  Cell* c = cell(at);
  for (Cell* end = cell(at + bytes + (bytes & 1)); c != end; ++c) {
    const bool both_atomic = kind == Kind::atomic && c->kind == Kind::atomic && c->written >= begun_;
    if (!both_atomic) check_write(w, lane, *c, at - kBegin, same);
    c->written = now_, c->writer = uint16_t(w.thread(lane)), c->line = uint16_t(line), c->kind = kind;
  }
  return to;
}

std::byte* SharedMemory::arrive(Warp& w, int lane, uint32_t at, uint32_t bytes) {
  if (!checks_) return data() + (at - kBegin);
  Cell* c = cell(at);
  for (Cell* end = cell(at + bytes); c != end; ++c)
    c->written = now_, c->writer = uint16_t(w.thread(lane)), c->kind = Kind::plain;
  return data() + (at - kBegin);
}

// This read takes another path to memory: writes must be published by their thread before the
// barrier in between.
const std::byte* SharedMemory::read_by_product(Warp& w, uint32_t at, uint32_t bytes, uint32_t begun) {
  if (!in_bounds(at, bytes)) fail_bounds(w, -1, at, bytes, false);
  if (!checks_) return data() + (at - kBegin);
  Cell* c = cell(at);
  for (Cell* end = cell(at + bytes); c != end; ++c) {
    if (c->written < begun_)
      w.fail("a product reads shared memory that was never written, byte " + std::to_string(at - kBegin));
    if (c->kind == Kind::coming || c->written >= begun)
      w.fail("a product in flight reads shared memory that " + place(c->writer, c->line) +
             " overwrites, byte " + std::to_string(at - kBegin));
    const size_t writer = c->writer / 32;
    if (!seen(w, c->writer, c->written) && int(writer) != w.index)
      w.fail("a product reads shared memory that was written by " + place(c->writer, c->line) +
             " without a barrier between, byte " + std::to_string(at - kBegin));
    const std::vector<uint32_t>& fences = w.block->warps[writer].published;
    const auto fence = std::upper_bound(fences.begin(), fences.end(), c->written);
    if (fence == fences.end() || *fence > begun ||
        (int(writer) != w.index && *fence >= seen_[size_t(w.index)][writer]))
      w.fail("a product reads shared memory that " + place(c->writer, c->line) +
             " wrote without a later fence.proxy.async, byte " + std::to_string(at - kBegin));
    note_read(w, w.thread(31), *c);
    if (c->reader != kMany) c->reader = kMany;
  }
  return data() + (at - kBegin);
}

}  // namespace interpreter
