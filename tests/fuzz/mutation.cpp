#include "tests/fuzz/mutation.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>

namespace cleave {

using nlohmann::json;

std::string Mutation::of(const std::string& good) {
  if (!good.starts_with('{') || pick(3) == 0) return bytes(good);
  json broken = json::parse(good, nullptr, false);
  if (broken.is_discarded()) return bytes(good);
  for (uint64_t i = 0; i <= pick(3); ++i) value(broken);
  return broken.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string Mutation::bytes(std::string text) {
  for (uint64_t i = 0; i <= pick(4) && !text.empty(); ++i) {
    const size_t at = pick(text.size()), length = std::min<size_t>(pick(40), text.size() - at);
    switch (pick(7)) {
      case 0:
        text[at] = char(pick(256));
        break;
      case 1:
        text[at] = char(text[at] ^ 1 << pick(8));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, text.substr(pick(text.size()), length));
        break;
      case 4:
        text.resize(at);
        break;
      case 5: {  // a length or an offset
        constexpr int64_t kNumbers[] = {0, -1, 1, int64_t{1} << 31, int64_t{1} << 62, INT64_MIN, INT64_MAX};
        const int64_t number = kNumbers[pick(std::size(kNumbers))];
        const size_t size = std::min<size_t>(pick(2) ? 4 : 8, text.size() - at);
        std::memcpy(text.data() + at, &number, size);
        break;
      }
      default:
        text.insert(at, pick(2) ? std::string(pick(100) ? pick(200) : 100000, '[') : std::string("\\ud800"));
    }
  }
  return text;
}

void Mutation::value(json& at) {
  const bool deeper = at.is_structured() && !at.empty() && pick(8) != 0;
  if (deeper) {
    auto child = at.begin();
    // Large tables would take all of the changes.
    std::advance(child, long(pick(std::min<uint64_t>(at.size(), 24))));
    if (pick(12) == 0)
      at.erase(child);
    else if (at.is_array() && pick(8) == 0)
      at.push_back(*child);
    else
      value(*child);
    return;
  }
  constexpr const char* kValues[] = {"null",
                                     "true",
                                     "-1",
                                     "0",
                                     "1",
                                     "1e300",
                                     "9223372036854775807",
                                     "18446744073709551615",
                                     "\"\"",
                                     "\"\\u0000\"",
                                     "[]",
                                     "{}",
                                     "[[[[]]]]",
                                     "[0, 8]",
                                     "[4294967296, 4294967296]",
                                     "\"../x\"",
                                     "\"F8_E4M3\"",
                                     "\"(((((((((\"",
                                     "\"[^\\\\s\"",
                                     "\"a{1000}\"",
                                     "\"\\\\p{L}+\"",
                                     "\"Ġ\"",
                                     "269",
                                     "\"BPE\"",
                                     "\"ByteLevel\"",
                                     "{\"type\": \"Sequence\", \"pretokenizers\": []}",
                                     "{\"Regex\": \"(a+)+b\"}"};
  at = json::parse(kValues[pick(std::size(kValues))]);
}

}  // namespace cleave
