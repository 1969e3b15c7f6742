// Parameters as the transformers library calls and stores them, in the fixtures of tests/fixtures.
#pragma once
#include "core/param_spec.h"
#include "tests/stored_values.h"

namespace cleave::testing {

// Our GPT-2's parameter in the set `prefix` of the file ("", "grad.", "step20."): matrices of blocks are [in,
// out] there and [out, in] here.
inline std::vector<float> gpt2_parameter(const checkpoint::TensorFile& file, const ParamSpec& spec,
                                         const std::string& prefix) {
  const std::vector<float> theirs = stored_values<float>(file, prefix + "transformer." + spec.name);
  if (spec.shape.size() != 2 || !spec.name.starts_with("h.")) return theirs;
  std::vector<float> ours(theirs.size());
  const auto rows = size_t(spec.whole_shape()[0]), columns = size_t(spec.whole_shape()[1]);
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) ours[r * columns + c] = theirs[c * rows + r];
  return ours;
}

// Softmax does not see a key bias without rotation: its gradient is rounding noise, which Adam turns into
// whole steps. Takes those of a fused bias of so many queries, keys and values each out.
inline void without_key_biases(std::vector<float>& fused) {
  const auto width = std::ptrdiff_t(fused.size() / 3);
  fused.erase(fused.begin() + width, fused.begin() + 2 * width);
}

}  // namespace cleave::testing
