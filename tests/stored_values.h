#pragma once
#include <span>
#include <string>
#include <vector>

#include "checkpoint/tensor_file.h"

namespace cleave {

// A whole tensor of a file, whose type is T.
template <class T>
std::vector<T> stored_values(const checkpoint::TensorFile& file, const std::string& name) {
  const checkpoint::StoredTensor& t = file.tensors().at(name);
  std::vector<T> values(size_t(t.end - t.begin) / sizeof(T));
  file.read(name, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace cleave
