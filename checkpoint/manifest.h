// The manifest of a checkpoint: which shard has which elements of which tensor, with checksums of all bytes.
// docs/checkpoint_format.md describes its text.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/elements.h"
#include "device/dtype.h"

namespace cleave::checkpoint {

struct Manifest {
  // Version 2 added records that have gaps ("every"), version 3 checksums of blocks, of the shards' headers
  // and of the manifest itself, version 4 tensors of another type than fp32. All are read; what is written is
  // version 3, or 4 where such a tensor is in it.
  static constexpr int kVersion = 4;
  static constexpr int64_t kBlock = int64_t{1} << 18;  // elements behind a checksum, as this version writes

  using Name = std::pair<std::string, std::string>;  // kind and tensor
  struct Part {
    std::string file;
    Elements elements;
    std::vector<uint64_t> checksums;  // of its blocks; before version 3 one of all its bytes
  };
  struct Whole {
    std::vector<int64_t> shape;
    DType dtype = DType::fp32;  // or int64
    std::vector<Part> parts;
    int64_t bytes() const;
  };
  struct Shard {
    int64_t bytes = 0;
    uint64_t header = 0;  // checksum of its JSON text
  };

  int64_t block = kBlock;  // elements; 0: a checksum for all of a part
  std::string state;       // JSON text of the saver's
  std::map<Name, Whole> tensors;
  std::map<std::string, Shard> shards;  // by file name; none before version 3

  int64_t bytes() const;  // of all tensors

  // Each throws Error(checkpoint), which says what is wrong: a text that is damaged or of another version,
  // shapes that no tensor has, an element that is listed twice or not at all.
  static Manifest read(const std::string& text);
  std::string text() const;

  // What one rank tells the first: its shard and the parts in it.
  std::string rank_text() const;
  void add_rank(const std::string& text);
  void require_complete() const;
};

// What a part is called in its shard.
std::string name_in_shard(const Manifest::Name& tensor, const Elements& elements);

// Elements of a whole tensor. Error(checkpoint) for a shape that no tensor has.
int64_t numel_of(const std::vector<int64_t>& shape, DType dtype = DType::fp32);

}  // namespace cleave::checkpoint
