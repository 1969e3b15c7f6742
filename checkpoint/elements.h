// Which elements of a whole tensor a record has, and what records have in common.
#pragma once
#include <functional>
#include <span>
#include <string_view>

#include "core/range.h"

namespace cleave::checkpoint {

// Elements of the flat order of a whole tensor: a range or, where stride > 0, of the range the first `run`
// elements of every `stride`, such as some columns of a matrix. Such a range ends with a run.
struct Elements {
  Range range;
  int64_t run = 0, stride = 0;
  int64_t numel() const { return stride ? (range.size() - run) / stride * run + run : range.size(); }
};

// Calls overlap(offset in wanted, offset in stored, numel) for what both have of wanted's elements [window),
// counted among its own.
using Overlap = std::function<void(int64_t in_wanted, int64_t in_stored, int64_t numel)>;
void each_overlap(const Elements& wanted, Range window, const Elements& stored, const Overlap& overlap);

// That the parts together have each element of a tensor of `numel` once. Error(checkpoint) otherwise, which
// names an element that is there twice or not at all, or the part that is none of such a tensor.
void require_each_once(std::span<const Elements> parts, int64_t numel, std::string_view tensor);

}  // namespace cleave::checkpoint
