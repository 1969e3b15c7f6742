// Angles of rotary position embeddings, and the rules that scale them to longer texts.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "device/tensor.h"

namespace cleave::model {

struct RopeScaling {
  enum class Kind : uint8_t {
    none,
    linear,  // every frequency divided by factor (Chen et al., arXiv 2306.15595)
    llama3,  // scales only wavelengths that are long relative to the original positions (Llama 3.1)
  } kind = Kind::none;
  double factor = 1;
  // llama3: scales wavelengths above original_positions / low_freq_factor, keeps those below
  // original_positions / high_freq_factor, and interpolates smoothly in between.
  double low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_positions = 8192;
  bool operator==(const RopeScaling&) const = default;
};

// Returns radians per position for each of the head_dim / 2 planes: theta^(-2i / head_dim), scaled. head_dim
// must be even.
std::vector<double> rope_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling);

// Cosines and sines of position * frequency, [positions, head_dim / 2] each, computed in double precision.
struct RopeTable {
  RopeTable(int64_t positions, const std::vector<double>& frequencies);
  // Returns views of cosines and sines as Rotary takes them.
  std::vector<Tensor> tensors() const;
  int64_t positions, half;
  std::vector<float> cos, sin;
};

// Returns a shared table, cached for the last two sets of angles, because planning a job makes its model
// hundreds of times. Thread-safe.
std::shared_ptr<const RopeTable> rope_table(int64_t positions, const std::vector<double>& frequencies);

}  // namespace cleave::model
