#include "data/text/added_tokens.h"

#include <algorithm>

#include "data/text/expression.h"
#include "core/utf8.h"

namespace cleave::text {
namespace {

// Start of the last character before `at`.
size_t character_before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

// True if a text of one character is a word character: \w of Unicode's report 18, as in the library. The last
// ranges are joiners and letters in circles and squares.
bool is_word(std::string_view character) {
  static const Expression expression(
      "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\u200C\u200D\u24B6-\u24E9\U0001F130-\U0001F149\U0001F150-\U0001F169"
      "\U0001F170-\U0001F189]",
      "a character of a word");
  thread_local Expression::Matcher matcher(expression);
  size_t begin = 0, end = 0;
  return matcher.next(character, 0, begin, end);
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    const size_t before = character_before(text, begin);
    if (is_word(text.substr(before, begin - before))) return false;
  }
  return end == text.size() || !is_word(text.substr(end, size_t(first_character(text.substr(end)).bytes)));
}

size_t without_space_before(std::string_view text, size_t at) {
  while (at > 0) {
    const size_t before = character_before(text, at);
    if (!is_white_space(first_character(text.substr(before)).code)) break;
    at = before;
  }
  return at;
}

size_t without_space_after(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Character next = first_character(text.substr(at));
    if (!is_white_space(next.code)) break;
    at += size_t(next.bytes);
  }
  return at;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& t) { return t.content.empty(); });
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& t : tokens_) begins_[static_cast<unsigned char>(t.content[0])] = true;
}

const AddedToken* AddedTokens::longest_at(std::string_view text, size_t at) const {
  // Tokens that match the text so far are adjacent; a token that ends here is the first of them.
  auto low = tokens_.begin(), high = tokens_.end();
  const AddedToken* found = nullptr;
  for (size_t depth = 0; at + depth < text.size() && low != high; ++depth) {
    const auto byte = static_cast<unsigned char>(text[at + depth]);
    auto value = [depth](const AddedToken& t) {
      return depth < t.content.size() ? int(static_cast<unsigned char>(t.content[depth])) : -1;
    };
    low = std::partition_point(low, high, [&](const AddedToken& t) { return value(t) < byte; });
    high = std::partition_point(low, high, [&](const AddedToken& t) { return value(t) <= byte; });
    if (low != high && low->content.size() == depth + 1) found = &*low;
  }
  return found;
}

void AddedTokens::cut(std::string_view text, bool special,
                      const std::function<void(std::string_view)>& between,
                      const std::function<void(int32_t)>& token) const {
  size_t done = 0, at = 0;
  while (at < text.size() && !tokens_.empty()) {
    if (!begins_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const AddedToken* found = longest_at(text, at);
    if (!found) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + found->content.size();
    at = end;  // a token that is rejected below is not searched again
    if (found->special && !special) continue;
    if (found->single_word && !stands_alone(text, begin, end)) continue;
    if (found->lstrip) begin = std::max(done, without_space_before(text, begin));
    if (found->rstrip) end = without_space_after(text, end);
    if (begin > done) between(text.substr(done, begin - done));
    token(found->id);
    done = end;
  }
  if (done < text.size()) between(text.substr(done));
}

}  // namespace cleave::text
