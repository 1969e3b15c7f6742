// The angles of the rotary position embedding and the rules that stretch them to longer texts.
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
    llama3,  // only those whose wavelength is long against the original positions (Llama 3.1)
  } kind = Kind::none;
  double factor = 1;
  // llama3: wavelengths above original_positions / low_freq_factor are stretched, those below
  // original_positions / high_freq_factor are kept, and between the two the change is smooth.
  double low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_positions = 8192;
  bool operator==(const RopeScaling&) const = default;
};

// Radians a position, for each of the head_dim / 2 planes: theta^(-2i / head_dim), scaled. head_dim is even.
std::vector<double> rope_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling);

// Cosines and sines of position * frequency, [positions, head_dim / 2] each, computed in double precision.
struct RopeTable {
  RopeTable(int64_t positions, const std::vector<double>& frequencies);
  // Cosines and sines as Rotary takes them, views of this table.
  std::vector<Tensor> tensors() const;
  int64_t positions, half;
  std::vector<float> cos, sin;
};

// One table for all who ask for the same angles one after the other, or for two by turns: who plans a job
// makes its model hundreds of times. From any thread.
std::shared_ptr<const RopeTable> rope_table(int64_t positions, const std::vector<double>& frequencies);

}  // namespace cleave::model
