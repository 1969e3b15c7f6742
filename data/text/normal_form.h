// Unicode normal forms, by ICU, of the characters of Unicode 9. Newer characters are unchanged, as in the
// tokenizers library.
#pragma once
#include <string>
#include <string_view>

namespace cleave::text {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// Returns the text itself if it already has the form, else `scratch`. The text must be UTF-8.
std::string_view to_normal_form(NormalForm form, std::string_view text, std::string& scratch);

}  // namespace cleave::text
