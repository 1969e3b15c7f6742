// Human-readable quantities: "2GiB", "512 MiB", 1.2e9 bytes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave {

// Parses "123", "64KiB", "1.5 GiB", "2GB" (without the i: powers of 1000). Throws Error(usage) with the name
// `what`.
int64_t parse_bytes(std::string_view text, std::string_view what);

// "1.50 GiB"; exact bytes below 10 KiB.
std::string format_bytes(int64_t bytes);

// "1.56 B", "124 M", "812".
std::string format_count(int64_t count);

}  // namespace cleave
