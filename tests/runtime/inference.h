// Layouts for inference engines, and the allowed differences.
#pragma once
#include "tests/runtime/cut_models.h"

namespace cleave::testing {

inline double farthest(const std::vector<float>& got, const std::vector<float>& want) {
  double worst = got.size() == want.size() ? 0 : 1e9;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i)
    worst = std::max(worst, double(std::abs(got[i] - want[i])));
  return worst;
}

inline std::vector<Layout> inference_layouts() {
  std::vector<Layout> out;
  for (const auto& [pipe, data, tensor, sequence] : {std::array{1, 1, 1, 1},
                                                     {2, 1, 1, 1},
                                                     {1, 3, 1, 1},
                                                     {1, 1, 2, 1},
                                                     {2, 1, 2, 1},
                                                     {1, 1, 1, 2},
                                                     {2, 2, 1, 2},
                                                     {1, 2, 2, 1},
                                                     {1, 1, 4, 1}})
    for (const int zero : {1, 3})
      for (const bool cut_rows : {true, false}) {
        if (tensor == 1 && !cut_rows) continue;
        Layout l{pipe, data, tensor, zero};
        l.sequence = sequence, l.cut_rows = cut_rows;
        out.push_back(l);
      }
  return out;
}

}  // namespace cleave::testing
