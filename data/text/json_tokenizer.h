#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "data/text/tokenizer.h"

namespace cleave::text {

// A tokenizer.json of the tokenizers library whose model is byte-level BPE: those of GPT-2, Llama 3, Qwen2
// and 3 and newer ones of Mistral. A `tokenizer_config.json` beside it may name the token that ends a
// document. Its limits of length and its padding are not used. Error(data) names what is wrong, or what is
// not built and what to do.
std::unique_ptr<Tokenizer> open_json_tokenizer(const std::string& path);

// The same from a text that messages call `path`; `end_of_text`, where it is not empty, is tried after the
// published names.
std::unique_ptr<Tokenizer> parse_json_tokenizer(std::string_view text, const std::string& path,
                                                const std::string& end_of_text = {});

}  // namespace cleave::text
