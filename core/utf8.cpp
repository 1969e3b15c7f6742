#include "core/utf8.h"

#include <algorithm>
#include <cstring>

namespace cleave {
namespace {

struct Run {
  int bytes = 0;       // length of the run, at least 1
  bool whole = false;  // the run is a complete character
};

// Table 3-7 of the Unicode standard: the second byte's range depends on the first.
Run run_at(const uint8_t* at, const uint8_t* end) {
  const uint8_t first = *at;
  if (first < 0x80) return {1, true};
  const int wanted = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (wanted == 0) return {1, false};
  uint8_t low = 0x80, high = 0xBF;
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  for (int i = 1; i < wanted; ++i, low = 0x80, high = 0xBF)
    if (at + i == end || at[i] < low || at[i] > high) return {i, false};
  return {wanted, true};
}

// Returns the first byte at or after `at` that is not part of a complete character.
const uint8_t* end_of_valid(const uint8_t* at, const uint8_t* end) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  while (at < end) {
    if (uint64_t eight = 0; end - at >= 8 && (std::memcpy(&eight, at, 8), (eight & kHighBits) == 0)) {
      at += 8;
      continue;
    }
    const Run run = run_at(at, end);
    if (!run.whole) return at;
    at += run.bytes;
  }
  return end;
}

}  // namespace

std::string_view valid_utf8(std::string_view bytes, std::string& scratch) {
  const auto* begin = reinterpret_cast<const uint8_t*>(bytes.data());
  const auto* end = begin + bytes.size();
  const uint8_t* bad = end_of_valid(begin, end);
  if (bad == end) return bytes;
  scratch.clear();
  for (const uint8_t* at = begin; at < end;) {
    scratch.append(reinterpret_cast<const char*>(at), size_t(bad - at));
    if (bad == end) break;
    scratch += "\xEF\xBF\xBD";
    at = bad + run_at(bad, end).bytes;
    bad = end_of_valid(at, end);
  }
  return scratch;
}

size_t whole_characters(std::string_view bytes) {
  const auto* begin = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t back = std::min<size_t>(bytes.size(), 3);
  for (size_t i = 1; i <= back; ++i) {
    const uint8_t byte = begin[bytes.size() - i];
    if (byte < 0x80) break;
    if (byte < 0xC0) continue;
    const Run run = run_at(begin + bytes.size() - i, begin + bytes.size());
    return !run.whole && size_t(run.bytes) == i && byte >= 0xC2 && byte < 0xF5 ? bytes.size() - i
                                                                               : bytes.size();
  }
  return bytes.size();
}

Character first_character(std::string_view text) {
  const auto* at = reinterpret_cast<const uint8_t*>(text.data());
  const Run run = run_at(at, at + text.size());
  if (!run.whole) return {0xFFFD, 1};
  if (run.bytes == 1) return {char32_t(*at), 1};
  char32_t code = *at & (0xFFU >> (run.bytes + 1));
  for (int i = 1; i < run.bytes; ++i) code = code << 6 | (at[i] & 0x3FU);
  return {code, run.bytes};
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += {char(0xC0 | c >> 6), char(0x80 | (c & 0x3F))};
  } else if (c < 0x10000) {
    out += {char(0xE0 | c >> 12), char(0x80 | (c >> 6 & 0x3F)), char(0x80 | (c & 0x3F))};
  } else {
    out += {char(0xF0 | c >> 18), char(0x80 | (c >> 12 & 0x3F)), char(0x80 | (c >> 6 & 0x3F)),
            char(0x80 | (c & 0x3F))};
  }
}

size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto* at = reinterpret_cast<const uint8_t*>(text.data());
  const Run run = run_at(at, at + text.size());
  return run.whole ? size_t(run.bytes) : 0;
}

}  // namespace cleave
