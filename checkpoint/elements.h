// Element sets of whole tensors that records hold, and their overlaps.
#pragma once
#include <functional>
#include <span>
#include <string_view>

#include "core/range.h"

namespace cleave::checkpoint {

// Elements of the flattened whole tensor: a range or, if stride > 0, the first `run` of every `stride`
// elements of the range, such as columns of a matrix. A strided range ends with a run.
struct Elements {
  Range range;
  int64_t run = 0, stride = 0;
  int64_t numel() const { return stride ? (range.size() - run) / stride * run + run : range.size(); }
};

// Calls overlap(offset in wanted, offset in stored, numel) for each run of elements in both `stored` and
// `wanted`. `window` is a range of wanted's own elements; the rest of `wanted` is ignored.
using Overlap = std::function<void(int64_t in_wanted, int64_t in_stored, int64_t numel)>;
void each_overlap(const Elements& wanted, Range window, const Elements& stored, const Overlap& overlap);

// Checks that the parts cover each element of a tensor of `numel` elements exactly once. Otherwise throws
// Error(checkpoint), which names a duplicate or missing element, or a part that does not fit the tensor.
void require_each_once(std::span<const Elements> parts, int64_t numel, std::string_view tensor);

}  // namespace cleave::checkpoint
