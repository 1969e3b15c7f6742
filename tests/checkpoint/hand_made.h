// Hand-made records of tensors with elements that encode their position.
#pragma once
#include <numeric>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace cleave::testing {

// Indices of all elements.
inline std::vector<int64_t> indices_of(const checkpoint::Elements& e) {
  std::vector<int64_t> out;
  for (int64_t i = e.range.begin; i < e.range.end; ++i)
    if (e.stride == 0 || (i - e.range.begin) % e.stride < e.run) out.push_back(i);
  return out;
}

// Value of element i of a tensor; exact in fp32.
inline float value_of(const std::string& tensor, int64_t i) { return float(i) + 0.5f * float(tensor.size()); }

using Shape2 = std::vector<int64_t>;

// A record to save.
inline checkpoint::Record given(const std::string& kind, const std::string& tensor, const Shape2& shape,
                                const checkpoint::Elements& elements) {
  return {kind,
          tensor,
          shape,
          elements,
          [tensor, at = indices_of(elements)](Range r, Tensor to) {
            for (int64_t i = r.begin; i < r.end; ++i)
              to.as<float>()[i - r.begin] = value_of(tensor, at[size_t(i)]);
          },
          {}};
}

// Reads elements of a stored tensor.
inline std::vector<float> read(const checkpoint::CheckpointReader& reader, const std::string& kind,
                               const std::string& tensor, const Shape2& shape,
                               const checkpoint::Elements& elements) {
  std::vector<float> out(size_t(elements.numel()), -1);
  reader.read({kind, tensor, shape, elements, {}, [&](Range r, Tensor from) {
                 std::copy_n(from.as<float>(), r.size(), out.begin() + r.begin);
               }});
  return out;
}

inline std::vector<float> expected(const std::string& tensor, const checkpoint::Elements& elements) {
  std::vector<float> out;
  for (const int64_t i : indices_of(elements)) out.push_back(value_of(tensor, i));
  return out;
}

// Integers that fp32 cannot represent, to save and as read.
inline int64_t count_of(int64_t i) { return (int64_t{1} << 60) + 3 * i; }
inline checkpoint::Record given_counts(const std::string& tensor, const Shape2& shape,
                                       const checkpoint::Elements& elements) {
  checkpoint::Record r{"layer_state", tensor, shape, elements};
  r.dtype = DType::int64;
  r.read = [at = indices_of(elements)](Range range, Tensor to) {
    for (int64_t i = range.begin; i < range.end; ++i)
      to.as<int64_t>()[i - range.begin] = count_of(at[size_t(i)]);
  };
  return r;
}
inline std::vector<int64_t> read_counts(const checkpoint::CheckpointReader& reader, const std::string& tensor,
                                        const Shape2& shape, const checkpoint::Elements& elements) {
  std::vector<int64_t> out(size_t(elements.numel()), -1);
  checkpoint::Record r{"layer_state", tensor, shape, elements};
  r.dtype = DType::int64;
  r.write = [&](Range range, Tensor from) {
    std::copy_n(from.as<int64_t>(), range.size(), out.begin() + range.begin);
  };
  reader.read(r);
  return out;
}

// Columns [begin, end) of a matrix.
inline checkpoint::Elements columns(int64_t rows, int64_t width, int64_t begin, int64_t end) {
  return {{begin, (rows - 1) * width + end}, end - begin, width};
}

}  // namespace cleave::testing
