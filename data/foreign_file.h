// Files that hold neither text nor tokens, and are taken for a text by who names them as data.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace cleave::data {

// Error(data) where a file that would be read as text is another thing by its first bytes or by the end of
// its name: says what it is, and what to make of it.
void refuse_foreign(const std::string& path, std::span<const uint8_t> head);

}  // namespace cleave::data
