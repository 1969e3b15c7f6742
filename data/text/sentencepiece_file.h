#pragma once
#include <string>
#include <string_view>

namespace cleave::text {

// Checks a tokenizer.model before the sentencepiece library sees it, because older versions of that library
// follow the file's numbers out of their memory (CVE-2026-1260). Error(data) names the file and the field.
// Returns the model without its self tests, which the library would run.
std::string checked_sentencepiece(std::string_view model, const std::string& path);

}  // namespace cleave::text
