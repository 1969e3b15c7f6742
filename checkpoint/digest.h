// One hash of named values that is the same however they are stored: cut over any number of shards, in any
// format.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace cleave::checkpoint {

struct NamedShape {
  std::string kind, tensor;
  std::vector<int64_t> shape;
  DType dtype = DType::fp32;
};

// By kind ("master", "exp_avg", ...), 32 hexadecimal digits: XXH3 with 128 bits of a line for each tensor, in
// the order of their names: `tensor [4, 6] 0123...`, whose digits are XXH3 with 128 bits of the values as
// fp32, little-endian, in the tensor's order, or as int64 where the tensor is. `as` other than fp32: of
// floats that are first rounded to that type, such as bf16. `read` gives whole tensors
// (CheckpointReader::read) and is called from `threads` threads at once. Throws what it throws.
std::map<std::string, std::string> digests(std::span<const NamedShape> tensors,
                                           const std::function<void(const Record&)>& read, int threads,
                                           DType as = DType::fp32);

// The digests of all tensors of a checkpoint.
std::map<std::string, std::string> digests(const CheckpointReader& reader, int threads,
                                           DType as = DType::fp32);

}  // namespace cleave::checkpoint
