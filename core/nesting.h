// JSON of files that somebody else has made. Parsers put up with any depth, but what prints a value, or looks
// through it, takes a frame of the stack for each level: a few hundred kilobytes of [ would end the program.
#pragma once
#include <string_view>

namespace cleave {

// Whether containers stand deeper in each other than in any file that is read here.
inline constexpr int kDeepestJson = 64;
bool nests_too_deep(std::string_view json);

// The text, or where it nests too deep an empty one, which is no JSON either.
inline std::string_view shallow_json(std::string_view json) {
  return nests_too_deep(json) ? std::string_view() : json;
}

}  // namespace cleave
