// Compares ids and texts with the tokenizers and sentencepiece libraries;
// tests/fixtures/make_tokenizer_fixtures.py makes the fixtures.
#include "data/text/tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/input_file.h"
#include "data/text/json_tokenizer.h"
#include "core/utf8.h"
#include "tests/scratch.h"

namespace cleave::text {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

std::string fixture(const std::string& name) { return std::string(FIXTURES "/") + name; }
std::string text_of(const std::string& name) { return InputFile(fixture(name), Exit::data).text(); }

std::string from_base64(const std::string& text) {
  std::string out;
  uint32_t bits = 0;
  int have = 0;
  for (const char c : text) {
    if (c == '=') break;
    const auto value =
        std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/").find(c);
    bits = bits << 6 | uint32_t(value), have += 6;
    if (have >= 8) out += char(bits >> (have -= 8) & 0xFF);
  }
  return out;
}

std::string valid(std::string_view bytes) {
  std::string scratch;
  return std::string(valid_utf8(bytes, scratch));
}

struct Sample {
  std::string text;
  Ids ids, plain, framed;
  std::string decoded;
};

std::vector<Sample> samples(const std::string& name) {
  const json all = json::parse(text_of("tokenizer_texts.json"));
  std::vector<Sample> out;
  for (size_t i = 0; i < all["texts"].size(); ++i) {
    const json& row = all[name][i];
    Sample s;
    s.text = from_base64(all["texts"][i]), s.ids = row["ids"].get<Ids>();
    s.plain = row.value("plain_ids", s.ids), s.framed = row.value("framed_ids", s.ids);
    s.decoded = row.value("decoded", valid(s.text));
    out.push_back(std::move(s));
  }
  return out;
}

class JsonTokenizers : public testing::TestWithParam<const char*> {
 protected:
  const std::string name_ = GetParam();
  const std::unique_ptr<Tokenizer> tokenizer_ = open_tokenizer(fixture("tokenizer_" + name_ + ".json"));
  const std::vector<Sample> samples_ = samples(name_);
};

TEST_P(JsonTokenizers, GiveTheIdsOfTheTokenizersLibrary) {
  ASSERT_GT(samples_.size(), 100U);
  for (const Sample& s : samples_) EXPECT_EQ(tokenizer_->encode(s.text), s.ids) << s.text;
}

TEST_P(JsonTokenizers, ReadSpecialTokensAsTextOnRequest) {
  for (const Sample& s : samples_)
    EXPECT_EQ(tokenizer_->encode(s.text, {.special_tokens = false}), s.plain) << s.text;
}

TEST_P(JsonTokenizers, FrameATextOnRequest) {
  for (const Sample& s : samples_) EXPECT_EQ(tokenizer_->encode(s.text, {.frame = true}), s.framed) << s.text;
}

TEST_P(JsonTokenizers, DecodeLikeTheLibrary) {
  for (const Sample& s : samples_) EXPECT_EQ(valid(tokenizer_->decode(s.ids)), s.decoded) << s.text;
}

TEST_P(JsonTokenizers, StreamTheSameTextInCompleteCharacters) {
  for (const Sample& s : samples_) {
    StreamDecoder decoder(*tokenizer_);
    std::string text;
    const bool whole = valid(tokenizer_->decode(s.ids)) == tokenizer_->decode(s.ids);
    for (const int32_t id : s.ids) {
      const std::string piece = decoder.add(id);
      if (whole) {
        EXPECT_EQ(valid(piece), piece);
      }
      text += piece;
    }
    EXPECT_EQ(text + decoder.finish(), tokenizer_->decode(s.ids));
  }
}

TEST_P(JsonTokenizers, PartsCutAtLinesHaveTheIdsOfTheWhole) {
  if (!tokenizer_->can_cut_at_lines()) GTEST_SKIP() << "it says that they have not";
  int cuts = 0;
  for (const Sample& a : samples_)
    for (const Sample& b : samples_) {
      const std::string head = valid(a.text), tail = valid(b.text);
      if (!head.ends_with('\n') || head.size() < 2 || tail.empty() ||
          !isalpha(static_cast<unsigned char>(tail[0])))
        continue;
      size_t last = head.size() - 2;
      while (last > 0 && (head[last] & 0xC0) == 0x80) --last;
      if (is_white_space(first_character(std::string_view(head).substr(last)).code)) continue;
      Ids parts = tokenizer_->encode(head);
      tokenizer_->encode(tail, {}, parts);
      EXPECT_EQ(parts, tokenizer_->encode(head + tail)) << head << "|" << tail;
      ++cuts;
    }
  EXPECT_GT(cuts, 50);
}

TEST_P(JsonTokenizers, LongWordsHaveTheSameMergesAsShortOnes) {
  // The ids of a long repetition do not depend on its length, so both merge algorithms agree.
  for (const std::string word : {"ab", "the", "x", "aab", "tion"}) {
    std::string text;
    while (text.size() < 20'000) text += word;
    const Ids ids = tokenizer_->encode(text);
    EXPECT_EQ(tokenizer_->decode(ids).substr(tokenizer_->decode(ids).size() - text.size()), text);
    const Ids shorter = tokenizer_->encode(text.substr(0, word.size() * 12));
    EXPECT_TRUE(std::equal(shorter.begin(), shorter.begin() + 2, ids.begin())) << word;
  }
}

INSTANTIATE_TEST_SUITE_P(, JsonTokenizers, testing::Values("gpt2", "llama3", "qwen2", "mistral", "odd"),
                         [](const auto& tested) { return std::string(tested.param); });

class SentencePieces : public testing::TestWithParam<const char*> {};

TEST_P(SentencePieces, GiveTheIdsAndTextsOfTheSentencepieceLibrary) {
  const auto tokenizer = open_tokenizer(fixture(std::string("sentencepiece_") + GetParam() + ".model"));
  for (const Sample& s : samples(GetParam())) {
    EXPECT_EQ(tokenizer->encode(s.text), s.ids) << s.text;
    EXPECT_EQ(valid(tokenizer->decode(s.ids)), s.decoded) << s.text;
    StreamDecoder decoder(*tokenizer);
    std::string text;
    for (const int32_t id : s.ids) text += decoder.add(id);
    EXPECT_EQ(text + decoder.finish(), tokenizer->decode(s.ids));
  }
}

INSTANTIATE_TEST_SUITE_P(, SentencePieces, testing::Values("bpe", "unigram"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(ByteTokenizer, MapsBytesToThemselves) {
  const auto tokenizer = open_tokenizer("byte");
  EXPECT_EQ(tokenizer->encode("a\xFF\n"), (Ids{97, 255, 10}));
  EXPECT_EQ(tokenizer->decode(Ids{97, 255, 10}), "a\xFF\n");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_FALSE(tokenizer->end_of_text().has_value());
}

TEST(Tokenizers, HaveAnEndOfTextToken) {
  for (const char* name : {"gpt2", "llama3", "qwen2"})
    EXPECT_EQ(open_tokenizer(fixture(std::string("tokenizer_") + name + ".json"))->end_of_text(), 0);
  EXPECT_EQ(open_tokenizer(fixture("sentencepiece_bpe.model"))->end_of_text(), 2) << "</s>";
}

TEST(Tokenizers, TokenizerConfigNamesAnUnusualEndOfTextToken) {
  const Scratch scratch;
  json file = json::parse(text_of("tokenizer_gpt2.json"));
  file["added_tokens"][0]["content"] = "<stop>";
  const int64_t id = int64_t(file["model"]["vocab"].size());
  file["added_tokens"][0]["id"] = id - 1;
  file["model"]["vocab"].erase("<|endoftext|>");
  const std::string path = scratch.write("tokenizer.json", file.dump());
  EXPECT_FALSE(open_tokenizer(path)->end_of_text().has_value());
  scratch.write("tokenizer_config.json", R"({"eos_token": {"content": "<stop>"}})");
  EXPECT_EQ(open_tokenizer(path)->end_of_text(), id - 1);
  EXPECT_EQ(open_tokenizer(scratch.folder().string())->end_of_text(), id - 1) << "a folder with the file";
}

TEST(Tokenizers, DigestsDifferByVocabularyButNotByLimits) {
  json file = json::parse(text_of("tokenizer_gpt2.json"));
  const auto digest = [&] { return parse_json_tokenizer(file.dump(2), "x")->digest(); };
  const uint64_t before = open_tokenizer(fixture("tokenizer_gpt2.json"))->digest();
  EXPECT_EQ(digest(), before) << "written in another way";
  file["truncation"] = {{"max_length", 5}};
  EXPECT_EQ(digest(), before);
  std::swap(file["model"]["merges"][0], file["model"]["merges"][1]);
  EXPECT_NE(digest(), before);
}

// A rejected change, and texts of its message.
struct Refused {
  const char* at;  // in the file
  const char* value;
  std::vector<std::string_view> says;
};

class RefusedTokenizers : public testing::TestWithParam<Refused> {};

TEST_P(RefusedTokenizers, AreNamed) {
  json file = json::parse(text_of("tokenizer_llama3.json"));
  file[json::json_pointer(GetParam().at)] = json::parse(GetParam().value);
  try {
    parse_json_tokenizer(file.dump(), "some/tokenizer.json");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.exit(), Exit::data);
    EXPECT_NE(message.find("some/tokenizer.json"), std::string::npos) << message;
    for (const std::string_view part : GetParam().says)
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

INSTANTIATE_TEST_SUITE_P(
    , RefusedTokenizers,
    testing::Values(
        Refused{"/model/type", R"("WordPiece")", {"'WordPiece'", "unsupported", "tokenizer.model"}},
        Refused{"/model/type", R"("Unigram")", {"'Unigram'", "tokenizer.model"}},
        Refused{"/model/byte_fallback", "true", {"byte_fallback"}},
        Refused{"/model/dropout", "0.1", {"dropout"}},
        Refused{"/model/end_of_word_suffix", R"("</w>")", {"end_of_word_suffix"}},
        Refused{"/normalizer", R"({"type": "Lowercase"})", {"'Lowercase'"}},
        Refused{"/pre_tokenizer", R"({"type": "Metaspace"})", {"'Metaspace'"}},
        Refused{"/pre_tokenizer", "null", {"without ByteLevel"}},
        Refused{"/pre_tokenizer/pretokenizers/0/behavior", R"("Contiguous")", {"'Contiguous'"}},
        Refused{"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"x("a(?<=b)")x", {"'(?<'", "at byte 1"}},
        Refused{"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("\\w+")", {"\\x5cw", "at byte 0"}},
        Refused{"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("a[^\\Sb]")", {"\\x5cS", "at byte 3"}},
        Refused{
            "/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("a|(?:b")", {"invalid expression at byte"}},
        Refused{"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("a*")", {"matches empty texts"}},
        Refused{"/post_processor", R"({"type": "Other"})", {"'Other'"}},
        Refused{"/model/merges/3", R"("onetoken")", {"merge 3", "'onetoken'"}},
        Refused{"/model/merges/3", R"(["a", "qqq"])", {"merge 3", "'qqq'", "not in the vocabulary"}},
        Refused{"/model/merges/3", "7", {"merge 3 is not a pair"}},
        Refused{"/model/vocab", "[]", {"not an object"}}, Refused{"/model/vocab/a", "-1", {"'a'", "-1"}},
        Refused{"/model/vocab/a", "4000000000", {"4000000000"}},
        Refused{"/model/vocab/a", "16000000", {"16000000", "(expected 0 to"}},
        Refused{"/added_tokens/1/id", "5", {"<|im_start|>", "5"}},
        Refused{"/added_tokens", "3", {"not a list"}}, Refused{"/model", "[1]", {"tokenizer.json"}}),
    [](const auto& tested) { return "case" + std::to_string(tested.index); });

TEST(Tokenizers, OtherFilesAreRejectedByName) {
  const Scratch scratch;
  expect_error(Exit::usage, {"does not exist", "nowhere.json"}, [] { open_tokenizer("nowhere.json"); });
  expect_error(Exit::usage, {"neither a tokenizer.json nor a tokenizer.model"},
               [&] { open_tokenizer(scratch.folder().string()); });
  expect_error(Exit::data, {"vocab.json", "\"model\" is missing"},
               [&] { open_tokenizer(scratch.write("vocab.json", R"({"a": 0})")); });
  expect_error(Exit::data, {"cut.json:", "it is not JSON", "download it again"}, [&] {
    open_tokenizer(scratch.write("cut.json", text_of("tokenizer_gpt2.json").substr(0, 1000)));
  });
  expect_error(Exit::data, {"deep.json:1:65: it nests deeper than 64"},
               [&] { open_tokenizer(scratch.write("deep.json", std::string(100'000, '['))); });
  expect_error(Exit::data, {"bad.model: the SentencePiece model is wrong", "tokenizer.json"},
               [&] { open_tokenizer(scratch.write("bad.model", "not a model")); });
}

}  // namespace
}  // namespace cleave::text
