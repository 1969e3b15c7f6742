// Tokens that are found in a text before all other processing, as in the tokenizers library: the longest at
// each position, from left to right, without overlaps.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;                 // metadata, not a part of the text
  bool normalized = false;              // matches its normalized form in the normalized text
  bool single_word = false;             // matches only between non-word characters
  bool lstrip = false, rstrip = false;  // includes white space before it, after it
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // Searches for their content; ignores tokens with empty content.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // Calls `between` with the non-empty text between tokens, and `token` with their ids, in order. If
  // `special` is false, special tokens are text.
  void cut(std::string_view text, bool special, const std::function<void(std::string_view)>& between,
           const std::function<void(int32_t)>& token) const;

 private:
  // Longest token at `at`, or null.
  const AddedToken* longest_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> begins_{};  // true if a token starts with the byte
};

}  // namespace cleave::text
