// The only rule that splits a text into training and validation text, so that different programs and machines
// compute losses of the same bytes.
//
// The text is cut into 20 equal blocks, with each cut moved to the next line end; every 10th block (the 10th
// and the 20th) is validation. A cut without a line end in its block is not moved, so every block of a text
// of at least 20 bytes is non-empty.
// block of a text of at least 20 bytes has something in it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/range.h"

namespace cleave::data {

// Non-empty byte ranges in order that together cover the text. Below 20 bytes there may be no validation
// part.
struct TextSplit {
  std::vector<Range> train, validation;
};

TextSplit split_text(std::string_view text);

// Concatenation of the ranges' bytes.
std::string cut_out(std::string_view text, const std::vector<Range>& ranges);

}  // namespace cleave::data
