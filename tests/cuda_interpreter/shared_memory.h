// The shared memory of a block, with the last writer and readers of each two bytes, and their
// times. Two accesses of different threads are ordered if a barrier (of the block or of their warp)
// is between them.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace interpreter {

struct Warp;

class SharedMemory {
 public:
  // First address, as on the hardware, so that a null address is invalid.
  static constexpr uint32_t kBegin = 1024;
  enum class Kind : uint8_t { plain, atomic, coming };

  SharedMemory();
  void resize(uint32_t bytes);
  void begin_block();
  uint32_t bytes() const { return bytes_; }

  bool checks() const { return checks_; }  // more than bounds and alignment
  // Checked accesses of a lane; the bytes are contiguous.
  const std::byte* read(Warp& w, int lane, uint32_t at, uint32_t bytes) {
    return !checks_ && in_bounds(at, bytes) ? data() + (at - kBegin) : checked_read(w, lane, at, bytes);
  }
  // Checks a write of `value`, which the caller then stores; without a value for a copy that
  // begins.
  std::byte* write(Warp& w, int lane, uint32_t at, uint32_t bytes, const void* value,
                   Kind kind = Kind::plain) {
    return !checks_ && in_bounds(at, bytes) ? data() + (at - kBegin)
                                            : checked_write(w, lane, at, bytes, value, kind);
  }
  // The bytes of a copy arrive.
  std::byte* arrive(Warp& w, int lane, uint32_t at, uint32_t bytes);
  // Checks a read by a warp's product that began at `begun` and ends now.
  const std::byte* read_by_product(Warp& w, uint32_t at, uint32_t bytes, uint32_t begun);

  bool contains(const void* p) const { return p >= data() && p < data() + bytes_; }
  std::byte* data() const { return const_cast<std::byte*>(memory_.data()); }

  uint32_t now() const { return now_; }
  uint32_t tick() { return ++now_; }
  void order_warp(int warp) { seen_[warp][warp] = ++now_; }
  void order(uint32_t warps);  // by a barrier of these

 private:
  static constexpr uint16_t kMany = 0xffff;
  struct Cell {
    uint32_t written = 0, read = 0, readers = 0;
    uint16_t writer = 0, reader = 0, line = 0;
    Kind kind = Kind::plain;
  };
  // `bytes` is a power of two.
  bool in_bounds(uint32_t at, uint32_t bytes) const {
    return at >= kBegin && at + bytes <= kBegin + bytes_ && (at & (bytes - 1)) == 0;
  }
  const std::byte* checked_read(Warp& w, int lane, uint32_t at, uint32_t bytes);
  std::byte* checked_write(Warp& w, int lane, uint32_t at, uint32_t bytes, const void* value, Kind kind);
  [[noreturn]] void fail_bounds(Warp& w, int lane, uint32_t at, uint32_t bytes, bool write) const;
  [[noreturn]] void fail_read(Warp& w, int lane, const Cell& c, uint32_t at) const;
  bool seen(const Warp& w, int thread, uint32_t time) const;
  void note_read(const Warp& w, int thread, Cell& c);
  void check_write(Warp& w, int lane, Cell& c, uint32_t at, bool same);
  Cell* cell(uint32_t at) { return &cells_[(at - kBegin) / 2]; }

  const bool checks_;
  uint32_t bytes_ = 0, now_ = 1, begun_ = 1;
  std::vector<std::byte> memory_;
  std::vector<Cell> cells_;
  std::array<std::array<uint32_t, 32>, 32> seen_{};  // by warp: time of the last order with each warp
};

}  // namespace interpreter
