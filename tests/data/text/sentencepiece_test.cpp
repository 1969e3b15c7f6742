// A tokenizer.model that would make the sentencepiece library read outside of its memory is rejected first; a
// model from the library's trainer is read.
#include <gtest/gtest.h>

#ifdef CLEAVE_HAVE_SENTENCEPIECE_TRAINER
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#endif

#include <cstring>
#include <limits>
#include <vector>

#include "data/text/sentencepiece_file.h"
#include "data/text/sentencepiece_tokenizer.h"
#include "tests/scratch.h"

namespace cleave::text {
namespace {

std::string number(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += char(value | 0x80);
  return out + char(value);
}
template <class T>
std::string little(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string number_field(uint64_t id, uint64_t value) { return number(id << 3) + number(value); }
std::string bytes_field(uint64_t id, const std::string& bytes) {
  return number(id << 3 | 2) + number(bytes.size()) + bytes;
}
std::string piece(const std::string& text, float score = 0, uint64_t type = 1) {
  return bytes_field(1, bytes_field(1, text) + number(2 << 3 | 5) + little(score) + number_field(3, type));
}

// Replaces A by a: a trie of one block; its root has the children 1 to 255.
struct Charsmap {
  std::vector<uint32_t> units = std::vector<uint32_t>(256);
  std::string texts = std::string("a\0", 2);
  Charsmap() {
    constexpr uint32_t kHasLeaf = 1 << 8, kLeaf = 200;
    units['A'] = 'A' | kHasLeaf | ('A' ^ kLeaf) << 10;
    units[kLeaf] = uint32_t{1} << 31;
  }
  std::string bytes() const {
    return little(uint32_t(units.size() * 4)) +
           std::string(reinterpret_cast<const char*>(units.data()), units.size() * 4) + texts;
  }
};

const std::string kUnknown = piece("<unk>", 0, 2), kWord = piece("a", -1);
std::string with(const std::string& more) { return kUnknown + kWord + more; }
std::string with(const Charsmap& map) { return with(bytes_field(3, bytes_field(2, map.bytes()))); }

void refused(const std::string& model, std::initializer_list<std::string_view> words) {
  expect_error(Exit::data, {"x.model: ", "download the file again"},
               [&] { checked_sentencepiece(model, "x.model"); });
  expect_error(Exit::data, words, [&] { checked_sentencepiece(model, "x.model"); });
}

TEST(SentencePieceFile, WithPiecesAndReplacementsIsRead) {
  const Scratch scratch;
  const auto tokenizer = open_sentencepiece(scratch.write("x.model", with(Charsmap())));
  EXPECT_EQ(tokenizer->vocab_size(), 2);
  const std::vector<int32_t> replaced = tokenizer->encode("A");
  EXPECT_EQ(replaced.back(), 1) << "the piece a";
  EXPECT_EQ(tokenizer->encode("a"), replaced);
}

TEST(SentencePieceFile, WithReplacementsOutOfBoundsIsRejected) {
  const auto broken = [](auto&& change) {
    Charsmap map;
    change(map);
    return with(map);
  };
  const std::string name = "normalizer_spec.precompiled_charsmap";
  refused(broken([](Charsmap& m) { m.units[0] = uint32_t{5000} << 10 | 1 << 9; }),
          {name + ".trie is wrong (got 1280000, expected 255)"});
  refused(broken([](Charsmap& m) { m.units[7] = uint32_t{256} << 10; }),
          {"trie is wrong (got 263, expected 255)"});
  refused(broken([](Charsmap& m) { m.units['A'] ^= 1 << 10; }), {"a text without a replacement"});
  refused(broken([](Charsmap& m) { m.units[200] |= 2; }), {"trie is wrong (got 2, expected the start"});
  refused(broken([](Charsmap& m) { m.units[200] |= 1; }), {"trie is wrong (got 1, expected the start"});
  refused(broken([](Charsmap& m) { m.texts = "a"; }), {name + ".replacements", "no zero byte"});
  refused(broken([](Charsmap& m) { m.texts = std::string("\xF0\0", 2); }),
          {"replacements", "expected UTF-8"});
  refused(broken([](Charsmap& m) { m.texts = std::string(300, 'a') + '\0'; }),
          {"got 300, expected at most 256 bytes"});
  refused(broken([](Charsmap& m) { m.units.resize(100); }), {"trie size is wrong (got 400"});
  refused(broken([](Charsmap& m) { m.texts = ""; }), {"trie size is wrong (got 1024"});
  refused(with(bytes_field(3, bytes_field(2, "\xff\xff\xff\xff\xff"))),
          {"trie size is wrong (got 4294967295"});
  refused(with(bytes_field(3, bytes_field(2, "abc"))), {"size is wrong (got 3, expected more than 4 bytes)"});
  refused(with(bytes_field(5, bytes_field(2, "abc"))), {"denormalizer_spec.precompiled_charsmap"});
}

TEST(SentencePieceFile, WithInvalidPiecesIsRejected) {
  refused(with(piece("")), {"pieces[2].piece is wrong (got 0, expected 1 to 4096 bytes)"});
  refused(with(piece(std::string(100'000, 'a'))), {"pieces[2].piece is wrong (got 100000"});
  refused(with(piece("\xff")), {"pieces[2].piece is wrong", "expected UTF-8"});
  refused(with(piece("b", std::numeric_limits<float>::quiet_NaN())), {"pieces[2].score is wrong (got nan"});
  refused(with(piece("b", -std::numeric_limits<float>::infinity())), {"pieces[2].score is wrong (got -inf"});
  refused(with(piece("b", 0, 7)), {"pieces[2].type is wrong (got 7, expected 1 to 6)"});
  refused(with(piece("b", 0, uint64_t(-1))), {"pieces[2].type is wrong (got 18446744073709551615"});
  refused(with(piece("<0xZZ>", 0, 6)),
          {"pieces[2].piece is wrong (got <0xZZ>, expected a byte such as <0x0A>)"});
  refused(with(piece("<>", 0, 6)), {"expected a byte"});
  refused(with(piece(std::string("b\0c", 3))), {"got a zero byte"});
  refused(with(piece(std::string("b\0c", 3), 0, 4) + bytes_field(2, number_field(3, 2))),
          {"got a zero byte"});
  EXPECT_NO_THROW(
      checked_sentencepiece(with(piece(std::string(1, '\0')) + bytes_field(2, number_field(3, 2))), "x"));
  refused(kWord, {"pieces of type unknown is wrong (got 0, expected 1)"});
  refused(with(kUnknown), {"pieces of type unknown is wrong (got 2, expected 1)"});
  refused("", {"pieces is wrong (got 0"});
}

TEST(SentencePieceFile, WithInvalidFieldsIsRejected) {
  refused(with(bytes_field(2, number_field(3, 9))),
          {"trainer_spec.model_type is wrong (got 9, expected 1 to 4)"});
  refused(with(bytes_field(2, number_field(41, 2))),
          {"trainer_spec.bos_id is wrong (got 2, expected -1 to 1)"});
  refused(with(bytes_field(2, number_field(42, uint64_t(-2)))), {"trainer_spec.eos_id is wrong (got -2"});
  EXPECT_NO_THROW(checked_sentencepiece(with(bytes_field(2, number_field(43, uint64_t(-1)))), "x"));
  refused(with(number_field(1, 5)), {"pieces[2].wire type is wrong (got 0, expected 2)"});
  refused(with(bytes_field(1, number_field(1, 5))), {"pieces[2].piece is wrong (got 0, expected 2)"});
  refused(with(bytes_field(1, bytes_field(1, "b") + number(2 << 3 | 1) + std::string(8, 'x'))),
          {"pieces[2].score is wrong (got 1, expected 5)"});
  refused(with(number(1 << 3 | 2) + number(1000) + "a"), {"got 1 more bytes, expected 1000"});
  refused(with(number(1 << 3 | 2) + std::string(9, '\xff') + "\x01"),
          {"more bytes, expected 18446744073709551615"});
  refused(with(std::string(11, '\xff')), {"a number of more than 10 bytes"});
  refused(with(number(9 << 3 | 3)), {"got wire type 3"});
}

TEST(SentencePieceFile, LosesItsSelfTests) {
  EXPECT_EQ(checked_sentencepiece(kUnknown + bytes_field(4, bytes_field(1, "text")) + kWord, "x"),
            kUnknown + kWord);
}

#ifdef CLEAVE_HAVE_SENTENCEPIECE_TRAINER
class Sentences : public sentencepiece::SentenceIterator {
 public:
  bool done() const override { return at_ == 300; }
  void Next() override {
    text_ = fmt::format("line {} of the {} texts, Ⅷ half ﬁnished {}", at_, at_ * 7 % 13, at_ % 5), ++at_;
  }
  const std::string& value() const override { return text_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  int at_ = 0;
  std::string text_ = "the first line";
};

// With the replacement tables of the tokenizers of T5 and Llama.
TEST(SentencePieceFile, FromTheTrainerOfTheLibraryIsRead) {
  const Scratch scratch;
  for (const char* options :
       {"--model_type=unigram --normalization_rule_name=nmt_nfkc --pad_id=0 --eos_id=1 --unk_id=2 "
        "--bos_id=-1",
        "--model_type=bpe --normalization_rule_name=nfkc_cf --byte_fallback=true "
        "--user_defined_symbols=<sep>,<|im|>",
        "--model_type=bpe --normalization_rule_name=identity --byte_fallback=true --split_digits=true",
        "--model_type=char --normalization_rule_name=nmt_nfkc_cf",
        "--model_type=word --normalization_rule_name=nfkc"}) {
    Sentences sentences;
    std::string model;
    const auto trained = sentencepiece::SentencePieceTrainer::Train(
        fmt::format("{} --vocab_size=400 --hard_vocab_limit=false --minloglevel=3 --self_test_sample_size=10",
                    options),
        &sentences, &model);
    ASSERT_TRUE(trained.ok()) << trained.ToString();
    sentencepiece::SentencePieceProcessor processor;
    ASSERT_TRUE(processor.LoadFromSerializedProto(model).ok());
    const auto tokenizer = open_sentencepiece(scratch.write("x.model", model));
    for (const std::string text : {"the line of texts", "ℌalf Ⅷ ﬁnished 12", "A\tB  C <sep>"}) {
      std::vector<int> ids;
      ASSERT_TRUE(processor.Encode(text, &ids).ok());
      EXPECT_EQ(tokenizer->encode(text), ids) << options << ": " << text;
    }
  }
}
#endif

}  // namespace
}  // namespace cleave::text
