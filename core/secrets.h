// Masks secrets in printed text: values with secret names, passwords and signatures in URLs, and words in the
// form of service keys. All code that prints a command, a variable or an argument calls this.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

// Returns true if the name of a variable or option marks its value as secret: DB_PASS, OPENAI_KEY, hfToken,
// ...
bool is_secret(std::string_view name);

// Replaces by "masked": the password before a URL's host, URL query values with secret names or `sig`, and
// words with the prefix of a service key (hf_, sk-, ghp_, ...).
std::string without_secrets(std::string_view text);
// Applies this to each word of a command, and masks the values of --hf_token X, --hf_token=X and hf_token=X.
std::vector<std::string> without_secrets(const std::vector<std::string>& words);

}  // namespace cleave
