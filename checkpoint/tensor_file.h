// A file of named tensors, whatever its format.
#pragma once
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "device/dtype.h"

namespace cleave::checkpoint {

// Dimensions of a tensor in any file. More only make a small file ask for much memory.
inline constexpr size_t kMostDims = 32;

struct StoredTensor {
  DType dtype = DType::fp32;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes, from where the format says that tensors begin
  // The file's name of a type that nothing here computes with, such as F8_E4M3; dtype then has as many bytes.
  std::string foreign = {};
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;
  virtual const std::map<std::string, StoredTensor>& tensors() const = 0;
  virtual const std::filesystem::path& path() const = 0;
  // Bytes of the tensor, from byte `begin` of it on; it must have as many. Error(checkpoint) where there is
  // no such tensor or the file cannot be read. Safe from several threads.
  virtual void read(const std::string& name, int64_t begin, std::span<std::byte> bytes) const = 0;
};

}  // namespace cleave::checkpoint
