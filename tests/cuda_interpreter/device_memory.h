// Memory of the emulated GPUs, and host memory that they can access, with the bounds of each piece.
// One unnamed file holds all memory, so that processes can open each other's pieces.
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
  enum class Giver : uint8_t { cuda, nccl };  // the allocator, which must also free the piece
  struct Piece {
    size_t bytes;
    std::string what;
    int device;                             // -1: the host
    bool owned;                             // part of the file
    mutable std::vector<bool> filled = {};  // by chunk: has the pattern, for pieces of the file
    Giver giver = Giver::cuda;
  };

  DeviceMemory();
  // Allocates memory with a pattern that is NaN in all types; null if the GPU has no more. The
  // pattern is written when holds() is first called for a byte, because programs never touch most
  // of their memory.
  void* allocate(int device, size_t bytes, Giver giver = Giver::cuda);
  bool free(void* p, Giver giver = Giver::cuda);
  // Sets these bytes to 0 by returning their pages to the file. Returns false if they are not in
  // one piece of the file.
  bool zero(void* p, size_t bytes);
  void add(void* p, size_t bytes, const std::string& what, int device = -1);
  bool remove(void* p);
  // Returns an empty text if the bytes are in one piece, otherwise the problem.
  std::string problem(const void* p, size_t bytes) const;
  // Returns true if the bytes are in a piece; fast for neighbors of this thread's last bytes. Every
  // read and write checks this first.
  bool holds(const void* p, size_t bytes) const;
  // Returns true if the address is in a GPU's memory.
  bool on_device(const void* p) const;
  const Piece* find(const void* p, std::byte** begin) const;

  size_t total() const { return total_; }
  size_t used(int device) const;
  int file() const { return file_; }
  const std::byte* begin() const { return base_; }
  static constexpr size_t kSpan = size_t{1} << 40;  // of addresses

 private:
  static constexpr size_t kPage = 4096, kChunk = 64 << 10, kKnown = 64;
  static constexpr size_t kGivenBack = 1 << 20;    // returned to the file; smaller pieces are not worth it
  static constexpr size_t kGranularity = 2 << 20;  // NCCL's granularity
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
