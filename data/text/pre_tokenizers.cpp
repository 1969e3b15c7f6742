#include "data/text/pre_tokenizers.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cleave::text {
namespace {

// GPT-2's expression, the default of ByteLevel.
constexpr std::string_view kByteLevelExpression =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// Expressions that always cut on both sides of a newline between a non-space character and a letter.
constexpr std::array<std::string_view, 5> kCutAtLines = {
    kByteLevelExpression,
    // Llama 3, and cl100k
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"
    "|\\s+(?!\\S)|\\s+",
    // Qwen2 and 3
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"
    "|\\s+(?!\\S)|\\s+",
    // Newer Mistral models
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}"
    "\\p{N}]?"
    "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    // o200k
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'"
    "ve|'m|'ll|'d)?"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|"
    "'ve|'m|'ll|'d)?"
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"};

}  // namespace

PreTokenizers::Cut PreTokenizers::at(std::string_view expression, const std::string& where) {
  Cut cut;
  cut.expression.emplace(expression, where);
  cut.at_lines = std::find(kCutAtLines.begin(), kCutAtLines.end(), expression) != kCutAtLines.end();
  return cut;
}

PreTokenizers::Cut PreTokenizers::byte_level(bool has_expression, const std::string& where) {
  if (has_expression) return at(kByteLevelExpression, where);
  Cut nothing;
  nothing.at_lines = true;
  return nothing;
}

bool PreTokenizers::cut_at_lines() const {
  return std::all_of(cuts_.begin(), cuts_.end(), [](const Cut& c) { return c.at_lines && !c.blank_before; });
}

PreTokenizers::Work::Work(const PreTokenizers& all) : with_blank_(all.cuts_.size()) {
  for (const Cut& cut : all.cuts_)
    cut.expression ? matchers_.emplace_back(std::in_place, *cut.expression) : matchers_.emplace_back();
}

}  // namespace cleave::text
