// Unicode's normal forms, by ICU, of the characters that Unicode 9 has: those that came later are left alone,
// as the tokenizers library leaves them.
#pragma once
#include <string>
#include <string_view>

namespace cleave::text {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// The text itself where it has the form, else `scratch`. The text must be UTF-8.
std::string_view to_normal_form(NormalForm form, std::string_view text, std::string& scratch);

}  // namespace cleave::text
