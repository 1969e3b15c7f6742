// Characters that represent bytes in byte-level tokenizers.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/utf8.h"

namespace cleave::text {

// Maps characters to bytes: printable bytes are represented by themselves, the others by characters from
// U+0100 on, in order.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool itself = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
      const char32_t code = itself ? char32_t(byte) : next++;
      byte_of_[code] = int16_t(byte);
    }
  }

  // False if the token has a character that represents no byte.
  bool to_bytes(std::string_view token, std::string& out) const {
    out.clear();
    while (!token.empty()) {
      const Character c = first_character(token);
      if (c.code >= byte_of_.size() || byte_of_[c.code] < 0) return false;
      out += char(byte_of_[c.code]);
      token.remove_prefix(size_t(c.bytes));
    }
    return true;
  }

 private:
  std::array<int16_t, 0x144> byte_of_ = [] {
    std::array<int16_t, 0x144> none{};
    none.fill(-1);
    return none;
  }();
};

}  // namespace cleave::text
