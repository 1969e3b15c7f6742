// Detects files that contain neither text nor tokens but were passed as text data.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace cleave::data {

// Throws Error(data) if the first bytes or the file extension show that the file is not text; names the
// format and how to convert it.
void refuse_foreign(const std::string& path, std::span<const uint8_t> head);

}  // namespace cleave::data
