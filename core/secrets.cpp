#include "core/secrets.h"

#include <algorithm>
#include <cctype>
#include <span>

namespace cleave {
namespace {

constexpr std::string_view kMasked = "masked";

bool is_one_of(std::span<const std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Splits HF_TOKEN, hf-token and hfToken into HF and TOKEN.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words;
  bool begins = true, was_lower = false;
  for (const char c : name) {
    const bool in_word = std::isalnum(uint8_t(c)) != 0;
    if (in_word && (begins || (was_lower && std::isupper(uint8_t(c))))) words.emplace_back();
    if (in_word) words.back() += char(std::toupper(uint8_t(c)));
    begins = !in_word, was_lower = std::islower(uint8_t(c)) != 0;
  }
  return words;
}

// Words with the prefix of a well-known service's keys.
bool is_key_of_service(std::string_view word) {
  constexpr std::string_view kBegins[] = {"hf_",   "sk-",   "ghp_", "gho_", "ghs_", "github_pat_", "glpat-",
                                          "xoxb-", "xoxp-", "AKIA", "ASIA", "AIza", "eyJ"};
  return word.size() >= 20 && std::any_of(std::begin(kBegins), std::end(kBegins),
                                          [&](std::string_view b) { return word.starts_with(b); });
}

std::string without_keys(std::string_view text) {
  const auto in_word = [](char c) { return std::isalnum(uint8_t(c)) || c == '_' || c == '-' || c == '.'; };
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && in_word(text[end])) ++end;
    const std::string_view word = text.substr(at, end - at);
    out.append(is_key_of_service(word) ? kMasked : word);
    if (end < text.size()) out += text[end++];
    at = end;
  }
  return out;
}

// Masks the part of a URL after "://".
std::string shown_url(std::string_view rest) {
  const std::string_view place = rest.substr(0, rest.find_first_of("/?#"));
  const size_t user = place.find(':'), host = place.rfind('@');
  std::string out(place);
  if (host != place.npos && user < host)
    out = std::string(place.substr(0, user + 1)).append(kMasked).append(place.substr(host));
  for (size_t i = place.size(); i < rest.size();) {
    const size_t end = std::min(rest.find_first_of("?&#", i + 1), rest.size()), equals = rest.find('=', i);
    const std::string_view part = rest.substr(i, end - i), name = part.substr(0, part.find('='));
    const bool secret = equals < end && (is_secret(name) || name.substr(1) == "sig");
    out.append(secret ? name : part).append(secret ? "=masked" : "");
    i = end;
  }
  return out;
}

}  // namespace

bool is_secret(std::string_view name) {
  // Matched anywhere in the name without its separators.
  constexpr std::string_view kParts[] = {
      "PASSW",     "PASSPHRASE", "SECRET", "CREDENTIAL",       "APIKEY",
      "ACCESSKEY", "PRIVATEKEY", "SSHKEY", "CONNECTIONSTRING", "ACCOUNTKEY"};
  // Matched as whole words, unless an adjacent word changes the meaning.
  constexpr std::string_view kWords[] = {"TOKEN", "KEY",   "PASS", "PWD", "AUTH",   "PAT",
                                         "CRED",  "CREDS", "DSN",  "SAS", "BEARER", "JWT"};
  constexpr std::string_view kBefore[] = {"PAD",       "EOS",      "BOS",    "UNK",   "CLS",   "SEP",
                                          "MASK",      "SPECIAL",  "IMAGE",  "TEXT",  "SORT",  "PRIMARY",
                                          "FOREIGN",   "GROUP",    "FIRST",  "LABEL", "DATA",  "QUERY",
                                          "PARTITION", "PER",      "PUBLIC", "NEXT",  "START", "END",
                                          "FORWARD",   "BACKWARD", "SECOND", "NUM",   "JSONL"};
  constexpr std::string_view kAfter[] = {"BYTES",  "DIM",  "ID",   "IDS",    "COUNT", "LEN",
                                         "LENGTH", "SIZE", "TYPE", "LEVEL",  "VALUE", "HEADS",
                                         "SOCK",   "RATE", "NAME", "PADDING"};
  const std::vector<std::string> words = words_of(name);
  std::string joined;
  for (const std::string& w : words) joined += w;
  if (joined == "PWD" || joined == "OLDPWD") return false;  // shell variables
  for (const std::string_view part : kParts)
    if (joined.find(part) != joined.npos) return true;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool glued = words[i].size() > 5 && words[i].ends_with("TOKEN");  // HFTOKEN
    if (!glued && !is_one_of(kWords, words[i])) continue;
    if (i > 0 && is_one_of(kBefore, words[i - 1])) continue;
    if (i + 1 < words.size() && is_one_of(kAfter, words[i + 1])) continue;
    return true;
  }
  return false;
}

std::string without_secrets(std::string_view text) {
  constexpr std::string_view kBlank = " \t\n\"'";
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t url = text.find("://", at);
    if (url == text.npos) {
      out.append(text.substr(at));
      break;
    }
    out.append(text.substr(at, url + 3 - at));
    const std::string_view rest = text.substr(url + 3).substr(0, text.substr(url + 3).find_first_of(kBlank));
    out.append(shown_url(rest));
    at = url + 3 + rest.size();
  }
  return without_keys(out);
}

std::vector<std::string> without_secrets(const std::vector<std::string>& words) {
  std::vector<std::string> shown;
  bool hides = false;  // masks the value after its option
  for (const std::string& word : words) {
    const bool option = word.starts_with("-");
    const size_t equals = word.find('=');
    const bool secret = is_secret(std::string_view(word).substr(0, equals)) && word.find('/') >= equals;
    if (hides && !option)
      shown.emplace_back(kMasked);
    else if (secret && equals != word.npos)
      shown.push_back(word.substr(0, equals + 1).append(kMasked));
    else
      shown.push_back(without_secrets(word));
    hides = secret && option && equals == word.npos;
  }
  return shown;
}

}  // namespace cleave
