// Masks secrets in text for people: values with secret names, passwords and signatures in URLs, and words in
// the form of a service's keys. All code that prints a command, a variable or an argument calls this.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

// Whether the name of a variable or an option says that its value is a secret: DB_PASS, OPENAI_KEY, hfToken,
// ...
bool is_secret(std::string_view name);

// The text with "masked" instead of: the password before a URL's host; the values of its query whose names
// are secret, and sig; and words that begin as keys of services do (hf_, sk-, ghp_, ...).
std::string without_secrets(std::string_view text);
// The same of each word of a command, and of --hf_token X, --hf_token=X and hf_token=X the value.
std::vector<std::string> without_secrets(const std::vector<std::string>& words);

}  // namespace cleave
