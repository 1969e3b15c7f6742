// Hash of named values that does not depend on storage: any number of shards, any format.
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

// By kind ("master", "exp_avg", ...), 32 hexadecimal digits: the 128-bit XXH3 of one line per tensor, sorted
// by name. A line is `tensor [4, 6] 0123...`; its digits are the 128-bit XXH3 of the values in row-major
// order as little-endian fp32, or as int64 for an int64 tensor. If `as` is another type than fp32, such as
// bf16, floats are first rounded to it. `read` reads whole tensors (CheckpointReader::read) and is called
// from `threads` threads at once. Throws the errors of `read`.
std::map<std::string, std::string> digests(std::span<const NamedShape> tensors,
                                           const std::function<void(const Record&)>& read, int threads,
                                           DType as = DType::fp32);

// Digests of all tensors of a checkpoint.
std::map<std::string, std::string> digests(const CheckpointReader& reader, int threads,
                                           DType as = DType::fp32);

}  // namespace cleave::checkpoint
