// The memory of the GPUs that the stand-in pretends to have, and memory of the host that they reach: where
// each piece begins and ends. One file without a name is all memory, so that processes can open each other's
// pieces.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

namespace interpreter {

class DeviceMemory {
 public:
  enum class Giver : uint8_t { cuda, nccl };  // who gave a piece and has to take it back
  struct Piece {
    size_t bytes;
    std::string what;
    int device;                             // -1: the host's
    bool owned;                             // of the file
    mutable std::vector<bool> filled = {};  // by chunk: with the pattern, where it is of the file
    Giver giver = Giver::cuda;
  };

  DeviceMemory();
  // Holds a pattern that is not a number in any type; null when the GPU has no more. The pattern is there
  // when holds() is first asked for a byte, because most of what a program allocates is never touched.
  void* allocate(int device, size_t bytes, Giver giver = Giver::cuda);
  bool free(void* p, Giver giver = Giver::cuda);
  // As setting these bytes to 0, but pages are given back to the file, where they read as zeros. False where
  // they are not of one piece of the file.
  bool zero(void* p, size_t bytes);
  void add(void* p, size_t bytes, const std::string& what, int device = -1);
  bool remove(void* p);
  // The piece in which the bytes lie; empty text where they do. Otherwise what is wrong with them.
  std::string problem(const void* p, size_t bytes) const;
  // Whether the bytes lie in a piece; fast where this thread has asked for their neighbours. Whoever reads or
  // writes asks first.
  bool holds(const void* p, size_t bytes) const;
  // Begins within a GPU's memory.
  bool on_device(const void* p) const;
  const Piece* find(const void* p, std::byte** begin) const;

  size_t total() const { return total_; }
  size_t used(int device) const;
  int file() const { return file_; }
  const std::byte* begin() const { return base_; }
  static constexpr size_t kSpan = size_t{1} << 40;  // of addresses

 private:
  static constexpr size_t kPage = 4096, kChunk = 64 << 10, kKnown = 64;
  static constexpr size_t kGivenBack = 1 << 20;  // to the file; to touch the pages of less again takes longer
  static constexpr size_t kGranularity = 2 << 20;  // what NCCL takes multiples of
  static size_t taken(size_t bytes, Giver giver) {
    return giver == Giver::nccl ? (bytes + kGranularity - 1) / kGranularity * kGranularity : bytes;
  }
  using Pieces = std::map<const std::byte*, Piece>;
  Pieces::const_iterator piece_at(const std::byte* p) const;
  static std::pair<const std::byte*, const std::byte*> fill(const std::byte* begin, const Piece& piece,
                                                            size_t first, size_t last);

  int file_ = -1;
  std::byte* base_ = nullptr;
  size_t total_ = 0, span_ = 0;
  mutable std::shared_mutex mutex_;
  std::atomic<uint64_t> changes_{1};
  Pieces pieces_;
};

DeviceMemory& device_memory();

}  // namespace interpreter
