// Manifest of a checkpoint: the shard of each tensor's elements, with checksums of all bytes.
// docs/checkpoint_format.md specifies its text.
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
  // Version 2 added records with gaps ("every"), version 3 checksums of blocks, shard headers and the
  // manifest, version 4 tensors of other types than fp32. All versions can be read. Written manifests have
  // version 3, or 4 if they contain such a tensor.
  static constexpr int kVersion = 4;
  static constexpr int64_t kBlock = int64_t{1} << 18;  // elements per checksum in written manifests

  using Name = std::pair<std::string, std::string>;  // kind and tensor
  struct Part {
    std::string file;
    Elements elements;
    std::vector<uint64_t> checksums;  // one per block; before version 3 one per part
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

  int64_t block = kBlock;  // elements; 0: one checksum per part
  std::string state;       // the saver's JSON text
  std::map<Name, Whole> tensors;
  std::map<std::string, Shard> shards;  // by file name; empty before version 3

  int64_t bytes() const;  // of all tensors

  // Each throws Error(checkpoint) for damaged text or another version, invalid shapes, and elements listed
  // twice or not at all.
  static Manifest read(const std::string& text);
  std::string text() const;

  // Message from a rank to rank 0: its shard and the shard's parts.
  std::string rank_text() const;
  void add_rank(const std::string& text);
  void require_complete() const;
};

// Name of a part in its shard.
std::string name_in_shard(const Manifest::Name& tensor, const Elements& elements);

// Number of elements of a whole tensor. Throws Error(checkpoint) if the shape is invalid.
int64_t numel_of(const std::vector<int64_t>& shape, DType dtype = DType::fp32);

}  // namespace cleave::checkpoint
