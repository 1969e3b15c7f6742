// Interface of files of named tensors in any format.
#pragma once
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "device/dtype.h"

namespace cleave::checkpoint {

// Maximum dimensions of a stored tensor. Limits the memory that a small file can request.
inline constexpr size_t kMostDims = 32;

struct StoredTensor {
  DType dtype = DType::fp32;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes, from the start of the format's tensor data
  // The file's name of a type without arithmetic support, such as F8_E4M3; `dtype` is then a type of the same
  // size.
  std::string foreign = {};
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;
  virtual const std::map<std::string, StoredTensor>& tensors() const = 0;
  virtual const std::filesystem::path& path() const = 0;
  // Reads bytes of the tensor from its byte `begin` on. Throws Error(checkpoint) if the tensor does not
  // exist, is too short, or cannot be read. Thread-safe.
  virtual void read(const std::string& name, int64_t begin, std::span<std::byte> bytes) const = 0;
};

}  // namespace cleave::checkpoint
