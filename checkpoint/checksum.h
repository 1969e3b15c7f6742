// XXH3, the checksum of checkpoints.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cleave::checkpoint {

inline uint64_t checksum_of(const void* bytes, int64_t n) { return XXH3_64bits(bytes, size_t(n)); }
inline uint64_t checksum_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

// Checksum of bytes that arrive in pieces.
class Checksum {
 public:
  Checksum() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_64bits_reset(state_.get()); }
  void add(const void* bytes, int64_t n) { XXH3_64bits_update(state_.get(), bytes, size_t(n)); }
  uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

}  // namespace cleave::checkpoint
