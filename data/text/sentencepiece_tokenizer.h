#pragma once
#include <memory>
#include <string>

#include "data/text/tokenizer.h"

namespace cleave::text {

// A tokenizer.model, through the sentencepiece library. Error(data) where that cannot read it, or was not
// there when this program was built.
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path);

}  // namespace cleave::text
