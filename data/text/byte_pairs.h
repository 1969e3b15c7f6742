// Byte-pair encoding of one pre-token: merges the adjacent pair of the lowest rank, leftmost first, until no
// pair can be merged (Sennrich et al., 2016).
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace cleave::text {

class BytePairs {
 public:
  static constexpr int32_t kNone = -1;

  struct Merge {
    int32_t left, right, result;
  };
  struct Parts {
    std::array<int32_t, 256> bytes{};                    // token of each byte; kNone: none
    int32_t unknown = kNone;                             // for bytes without a token; kNone: drops them
    bool fuse_unknown = false;                           // one unknown token per run of such bytes
    std::vector<Merge> merges;                           // by rank; the last of several for one pair counts
    std::vector<std::pair<std::string, int32_t>> whole;  // pre-tokens that are tokens regardless of merges
  };

  // State of one thread between calls: work space, and a cache of encoded pre-tokens.
  class Work {
   public:
    Work();

   private:
    friend class BytePairs;
    // One cache line. Most pre-tokens of a text are short and frequent.
    struct alignas(64) Known {
      static constexpr size_t kBytes = 24, kTokens = 9;
      std::array<uint64_t, kBytes / 8> key{};
      uint8_t bytes = 0;  // 0: free
      uint8_t tokens = 0;
      std::array<int32_t, kTokens> ids{};
    };
    struct Symbol {
      int32_t id, before, after;
    };
    struct Candidate {
      int32_t rank, index, left, right, result;
    };
    std::vector<Known> known_;
    std::vector<int32_t> ids_, ranks_;
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
  };

  explicit BytePairs(Parts parts);

  // Appends the tokens of a non-empty pre-token. Safe from several threads with separate `work`.
  void encode(std::string_view word, Work& work, std::vector<int32_t>& out) const;

 private:
  struct Slot {
    uint64_t pair = kFree;
    int32_t rank = 0, result = 0;
    static constexpr uint64_t kFree = UINT64_MAX;
  };
  static constexpr int32_t kNoRank = INT32_MAX;

  static uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  }
  size_t slot_of(uint64_t pair) const { return size_t(pair * 0x9E3779B97F4A7C15ULL >> shift_); }
  // Null if the pair is not merged.
  const Slot* find(int32_t left, int32_t right) const;
  int32_t rank(int32_t left, int32_t right) const;

  void begin(std::string_view word, std::vector<int32_t>& ids) const;
  void merge_few(Work& work) const;
  void merge_many(Work& work) const;
  void merge(std::string_view word, Work& work) const;

  std::array<int32_t, 256> bytes_;
  int32_t unknown_;
  bool fuse_unknown_, all_bytes_;
  std::vector<Slot> slots_;
  int shift_ = 0;
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> whole_;
};

}  // namespace cleave::text
