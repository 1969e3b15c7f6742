// Quantities as people write them: "2GiB", "512 MiB", 1.2e9 bytes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave {

// Bytes of "123", "64KiB", "1.5 GiB", "2GB" (powers of 1000 without the i). Throws Error(usage) naming
// `what`.
int64_t parse_bytes(std::string_view text, std::string_view what);

// "1.50 GiB"; exact bytes below 10 KiB.
std::string format_bytes(int64_t bytes);

// "1.56 B", "124 M", "812".
std::string format_count(int64_t count);

}  // namespace cleave
