#pragma once
#include <memory>
#include <string>

#include "data/text/tokenizer.h"

namespace cleave::text {

// Opens a tokenizer.model with the sentencepiece library. Throws Error(data) if the library cannot read it or
// this build does not include the library.
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path);

}  // namespace cleave::text
