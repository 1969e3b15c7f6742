// JSON of files that somebody else has made. What is wrong with one is said in words of this program, with
// its position. Parsers put up with any depth, but what prints a value, or looks through it, takes a frame of
// the stack for each level: a few hundred kilobytes of [ would end the program.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace cleave {

// Containers stand no deeper in each other in any file that is read here.
inline constexpr int kDeepestJson = 64;

struct JsonFault {
  int64_t line, column;  // from 1; columns count characters
  std::string message;   // "expected a value, got '}'"
};

// Where and why the text is not JSON that is read here: what is not JSON, a key that an object has twice, and
// what nests too deep. Nothing where it is.
std::optional<JsonFault> fault_in_json(std::string_view text);

// The value of the text, or Error(exit) "FILE:LINE:COLUMN: ...", where `file` says whose text it is, and with
// `advice` behind it where there is some.
nlohmann::json parse_json(std::string_view text, const std::string& file, Exit exit,
                          std::string_view advice = "");

// Whole numbers that files count steps and samples with: sums and products of a few of them do not wrap
// around.
inline constexpr int64_t kMostCounted = int64_t{1} << 40;
// The value as one of [least, kMostCounted]. nlohmann::json::exception if it is anything else, such as 1e300,
// whose conversion C++ does not define.
int64_t counted(const nlohmann::json& value, int64_t least = 0);

// What an exception of the JSON library says, without the number that it begins with.
std::string without_number(std::string_view what);

// The value of the text, discarded (is_discarded()) where it is none: for what need not be JSON.
nlohmann::json json_or_nothing(std::string_view text);

}  // namespace cleave
