#pragma once
#include <string>
#include <string_view>

namespace cleave::text {

// Validates a tokenizer.model before the sentencepiece library reads it, because older versions of the
// library use the file's numbers as unchecked offsets (CVE-2026-1260). Throws Error(data) with the file and
// the field. Returns the model without its self tests, which the library would run.
std::string checked_sentencepiece(std::string_view model, const std::string& path);

}  // namespace cleave::text
