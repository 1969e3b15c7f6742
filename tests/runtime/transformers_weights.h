// Parameters with names and layouts of the transformers library, in the fixtures of tests/fixtures.
#pragma once
#include "core/param_spec.h"
#include "tests/stored_values.h"

namespace cleave::testing {

// Returns our GPT-2's parameter from the set `prefix` of the file ("", "grad.", "step20."): block matrices
// are [in, out] there and [out, in] here.
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

// Softmax is independent of a key bias without rotation: its gradient is rounding noise, which Adam turns
// into whole steps. Removes the key part of a fused bias of equally many queries, keys and values.
inline void without_key_biases(std::vector<float>& fused) {
  const auto width = std::ptrdiff_t(fused.size() / 3);
  fused.erase(fused.begin() + width, fused.begin() + 2 * width);
}

}  // namespace cleave::testing
