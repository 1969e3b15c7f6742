// Reads tokenizer.json into the form that encoding needs.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/added_tokens.h"
#include "data/text/byte_pairs.h"
#include "data/text/normal_form.h"
#include "data/text/pre_tokenizers.h"

namespace cleave::text {

struct TokenizerParts {
  std::vector<NormalForm> forms;
  PreTokenizers cuts;
  BytePairs::Parts pairs;
  std::vector<AddedToken> added;
  std::vector<std::string> bytes;      // by id
  std::vector<char> special;           // by id
  std::vector<int32_t> before, after;  // tokens around a text
  std::optional<int32_t> end_of_text;
  uint64_t digest = 0;
};

// Reads the text of a file that messages call `path`; `end_of_text`, if not empty, is tried after the
// published names. Throws Error(data), which names a fault or an unsupported feature, and a fix.
TokenizerParts read_tokenizer_json(std::string_view text, const std::string& path,
                                   const std::string& end_of_text);

}  // namespace cleave::text
