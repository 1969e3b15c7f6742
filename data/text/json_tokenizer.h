#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "data/text/tokenizer.h"

namespace cleave::text {

// Opens a tokenizer.json of the tokenizers library with a byte-level BPE model: GPT-2, Llama 3, Qwen2, Qwen3
// and newer Mistral models. A `tokenizer_config.json` in the same folder may name the end-of-text token. Its
// length limits and padding are not used. Throws Error(data), which names a fault or an unsupported feature,
// and a fix.
std::unique_ptr<Tokenizer> open_json_tokenizer(const std::string& path);

// Parses the text of a file that messages call `path`; `end_of_text`, if not empty, is tried after the
// published names.
std::unique_ptr<Tokenizer> parse_json_tokenizer(std::string_view text, const std::string& path,
                                                const std::string& end_of_text = {});

}  // namespace cleave::text
