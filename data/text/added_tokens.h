// Tokens that are found in a text before anything else looks at it, as the tokenizers library finds them: at
// each position the longest, from left to right, without overlaps.
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
  bool special = false;                 // says something about the text and is no part of it
  bool normalized = false;              // found in the normalized text, in its own normalized form
  bool single_word = false;             // only between characters that belong to no word
  bool lstrip = false, rstrip = false;  // takes the white space before it, after it
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // Looked for by their content; those without any are left out.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // Calls `text` with what stands between tokens, never empty, and `token` with their ids, in order. Special
  // tokens are text where `special` is false.
  void cut(std::string_view text, bool special, const std::function<void(std::string_view)>& between,
           const std::function<void(int32_t)>& token) const;

 private:
  // The longest token at `at`, or null.
  const AddedToken* longest_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;  // by content
  std::array<bool, 256> begins_{};  // whether a token begins with the byte
};

}  // namespace cleave::text
