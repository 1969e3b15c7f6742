// Broken tokenizer files: whatever their bytes are, they are read or refused with an Error(data), and what is
// read encodes and decodes. FUZZ_CASES=10000000 runs as many; without it a few thousand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "core/input_file.h"
#include "tests/scratch.h"
#include "text/json_tokenizer.h"

namespace cleave {
namespace {

using nlohmann::json;

int64_t fuzz_cases() {
  const char* asked = std::getenv("FUZZ_CASES");
  return asked ? std::atoll(asked) : 4000;
}

// Small, so that many fit into a second: the file's shape, with a few tokens and merges.
json small_file(const std::string& name) {
  json file = json::parse(InputFile(FIXTURES "/tokenizer_" + name + ".json", Exit::data).text());
  json vocab, merges = json::array();
  for (const auto& [token, id] : file["model"]["vocab"].items())
    if (id.get<int>() < 270) vocab[token] = id;
  for (const json& merge : file["model"]["merges"])
    if (vocab.contains(merge[0].get<std::string>() + merge[1].get<std::string>())) merges.push_back(merge);
  file["model"]["vocab"] = vocab, file["model"]["merges"] = merges;
  auto next = int64_t(vocab.size());
  for (json& token : file["added_tokens"])
    if (!vocab.contains(token["content"].get<std::string>())) token["id"] = next++;
  if (file["post_processor"].is_object())
    for (json& token : file["post_processor"]["processors"][1]["special_tokens"]) token["ids"] = {0};
  return file;
}

class Mutation {
 public:
  explicit Mutation(uint64_t seed) : random_(seed) {}

  // A broken copy: of the text, or of a value in it.
  std::string of(const json& file, const std::string& text) {
    if (pick(3) == 0) return bytes(text);
    json broken = file;
    for (uint64_t i = 0; i <= pick(3); ++i) value(broken);
    return broken.dump(-1, ' ', false, json::error_handler_t::replace);
  }

 private:
  uint64_t pick(uint64_t below) { return random_() % below; }

  std::string bytes(std::string text) {
    for (uint64_t i = 0; i <= pick(4); ++i) {
      const size_t at = pick(text.size()), length = std::min<size_t>(pick(40), text.size() - at);
      switch (pick(5)) {
        case 0:
          text[at] = char(pick(256));
          break;
        case 1:
          text.erase(at, length);
          break;
        case 2:
          text.insert(at, text.substr(pick(text.size()), length));
          break;
        case 3:
          text.resize(at);
          break;
        default:
          text.insert(at, pick(2) ? std::string(pick(200), '[') : std::string("\\ud800"));
      }
      if (text.empty()) return text;
    }
    return text;
  }

  void value(json& at) {
    const bool deeper = at.is_structured() && !at.empty() && pick(8) != 0;
    if (deeper) {
      auto child = at.begin();
      // Large tables would take all of the changes.
      std::advance(child, long(pick(std::min<uint64_t>(at.size(), 24))));
      if (pick(12) == 0)
        at.erase(child);
      else
        value(*child);
      return;
    }
    constexpr const char* kValues[] = {"null",
                                       "true",
                                       "-1",
                                       "0",
                                       "1e300",
                                       "18446744073709551615",
                                       "\"\"",
                                       "\"\\u0000\"",
                                       "[]",
                                       "{}",
                                       "[[[[]]]]",
                                       "\"(((((((((\"",
                                       "\"[^\\\\s\"",
                                       "\"a{1000}\"",
                                       "\"\\\\p{L}+\"",
                                       "\"Ġ\"",
                                       "269",
                                       "\"BPE\"",
                                       "\"ByteLevel\"",
                                       "{\"type\": \"Sequence\", \"pretokenizers\": []}",
                                       "{\"Regex\": \"(a+)+b\"}"};
    at = json::parse(kValues[pick(std::size(kValues))]);
  }

  std::mt19937_64 random_;
};

TEST(TokenizerFuzz, ABrokenFileIsReadOrRefused) {
  int64_t read = 0, refused = 0;
  Mutation mutation(1);
  for (const char* name : {"llama3", "odd"}) {
    const json file = small_file(name);
    const std::string text = file.dump();
    ASSERT_NO_THROW(parse_json_tokenizer(text, "whole"));
    for (int64_t i = 0; i < fuzz_cases() / 2; ++i) {
      const std::string broken = mutation.of(file, text);
      try {
        const auto tokenizer = parse_json_tokenizer(broken, "broken");
        ++read;
        const std::vector<int32_t> ids = tokenizer->encode(
            "some <|endoftext|> te\xFFxt, 123  \u00e9e\u0301 <strip> "
            "tttttttttttttttttttttttttttttttttttttttttttttttttttttt",
            {.frame = true});
        for (const int32_t id : ids) ASSERT_LT(id, tokenizer->vocab_size()) << broken;
        tokenizer->decode(ids);
      } catch (const Error& error) {
        ASSERT_EQ(error.exit(), Exit::data) << error.what() << "\n" << broken;
        ++refused;
      }
    }
  }
  EXPECT_GT(read, fuzz_cases() / 100) << "the changes are so large that nothing behind the parser is tried";
  EXPECT_GT(refused, fuzz_cases() / 10);
}

}  // namespace
}  // namespace cleave
