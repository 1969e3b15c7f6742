// The one rule by which a text becomes training and validation text, so that losses of different programs and
// machines are losses of the same bytes.
//
// The text is cut into 20 equal blocks, each cut moved to the next line end; every 10th block (the 10th and
// the 20th) is validation. A cut that meets no line end within its block stays where it is, so that every
// block of a text of at least 20 bytes has something in it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/range.h"

namespace cleave::data {

// Byte ranges in order; together they cover the text, none is empty. Below 20 bytes there may be no
// validation part.
struct TextSplit {
  std::vector<Range> train, validation;
};

TextSplit split_text(std::string_view text);

// The bytes of the ranges, one after the other.
std::string cut_out(std::string_view text, const std::vector<Range>& ranges);

}  // namespace cleave::data
