// JSON of untrusted files. Errors are in words of this program and have a position. Nesting is limited
// because printing or searching a value recurses: a few hundred kilobytes of [ would overflow the stack.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace cleave {

// Maximum nesting of containers in any file.
inline constexpr int kDeepestJson = 64;

struct JsonFault {
  int64_t line, column;  // from 1; columns count characters
  std::string message;   // "expected a value, got '}'"
};

// Returns position and reason if the text is not valid JSON, an object has a duplicate key, or nesting is too
// deep; otherwise nothing.
std::optional<JsonFault> fault_in_json(std::string_view text);

// Parses the text, or throws Error(exit) "FILE:LINE:COLUMN: ..." with `file` as FILE, followed by `advice` if
// given.
nlohmann::json parse_json(std::string_view text, const std::string& file, Exit exit,
                          std::string_view advice = "");

// Maximum of step and sample counts in files. Sums and products of a few of them do not overflow.
inline constexpr int64_t kMostCounted = int64_t{1} << 40;
// Converts the value to an integer in [least, kMostCounted]. Throws nlohmann::json::exception for anything
// else, such as 1e300, because C++ does not define its conversion.
int64_t counted(const nlohmann::json& value, int64_t least = 0);

// Message of a JSON library exception without its leading number.
std::string without_number(std::string_view what);

// Parses the text; the result is discarded (is_discarded()) if the text is not JSON. For optional JSON.
nlohmann::json json_or_nothing(std::string_view text);

}  // namespace cleave
