// What the writer and the reader of checkpoints agree on.
#pragma once
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "checkpoint/checkpoint.h"

namespace cleave {

// Version 2 adds "every": [run, stride] to the records that have gaps; a checkpoint without any is version 1.
inline constexpr int kFormatVersion = 2;

inline constexpr int64_t kPiece = int64_t{1} << 21;  // elements in memory at a time

// XXH3 of bytes that come in pieces.
class Checksum {
 public:
  Checksum() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_64bits_reset(state_.get()); }
  void add(const void* bytes, int64_t n) { XXH3_64bits_update(state_.get(), bytes, size_t(n)); }
  uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

// Throws Error(checkpoint).
std::string read_text(const std::filesystem::path& path);

// What a record is called in its shard: its kind, tensor and elements.
std::string record_name(const std::string& kind, const std::string& tensor, const Elements& elements);

// Of a record in a manifest. Throw Error(checkpoint) naming what is missing or of another form.
Elements elements_of(const nlohmann::json& record);
std::vector<int64_t> shape_of(const nlohmann::json& record);

// Elements of a whole tensor. Error(checkpoint) for a shape that no tensor has.
int64_t numel_of(const std::vector<int64_t>& shape);

}  // namespace cleave
