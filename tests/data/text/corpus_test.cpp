#include "data/text/corpus.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/input_file.h"
#include "tests/scratch.h"

namespace cleave::text {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> fixture_tokenizer(const std::string& name) {
  return open_tokenizer(FIXTURES "/" + name);
}

struct Corpus {
  std::vector<Ids> documents;
  int64_t bytes = 0;
};

Corpus read_corpus(const Tokenizer& tokenizer, const CorpusOptions& options) {
  Corpus out;
  Ids open;
  CorpusSink sink;
  sink.tokens = [&](std::span<const int32_t> ids) { open.insert(open.end(), ids.begin(), ids.end()); };
  sink.end_document = [&] { out.documents.push_back(std::exchange(open, {})); };
  sink.progress = [&](int64_t bytes) {
    EXPECT_GE(bytes, out.bytes);
    out.bytes = bytes;
  };
  tokenize_corpus(tokenizer, options, sink);
  EXPECT_TRUE(open.empty()) << "the last document was not ended";
  return out;
}

Ids with_end(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids = tokenizer.encode(text);
  ids.push_back(*tokenizer.end_of_text());
  return ids;
}

// Larger than the piece of a thread, with few positions for a cut.
std::string long_text() {
  std::string text;
  for (int64_t i = 0; text.size() < size_t{3} << 20; ++i) {
    text += fmt::format("Line {} of it, caf\u00e9 \u4e16\u754c  and  {}", i, i * i);
    text += i % 7 == 0 ? "\nNext " : i % 5 == 0 ? " \n\n  " : i % 3 == 0 ? "\u3000\nA" : "\n9";
  }
  return text;
}

TEST(Corpus, ATextOfManyPiecesHasTheIdsOfTheWholeForAnyNumberOfThreads) {
  const Scratch scratch;
  const std::string text = long_text(), path = scratch.write("a.txt", text);
  for (const char* name : {"tokenizer_gpt2.json", "tokenizer_llama3.json", "tokenizer_qwen2.json",
                           "tokenizer_mistral.json", "tokenizer_odd.json"}) {
    const auto tokenizer = fixture_tokenizer(name);
    for (const int threads : {1, 3}) {
      const Corpus corpus = read_corpus(*tokenizer, {.path = path, .threads = threads});
      ASSERT_EQ(corpus.documents.size(), 1U);
      EXPECT_EQ(corpus.documents[0], with_end(*tokenizer, text)) << name;
      EXPECT_EQ(corpus.bytes, int64_t(text.size()));
    }
  }
}

TEST(Corpus, AnEndOfTextTokenEndsADocument) {
  const Scratch scratch;
  const auto tokenizer = fixture_tokenizer("tokenizer_gpt2.json");
  const std::string path = scratch.write("a.txt", "first<|endoftext|>second\n<|endoftext|>");
  const Corpus corpus = read_corpus(*tokenizer, {.path = path});
  EXPECT_EQ(corpus.documents, (std::vector{with_end(*tokenizer, "first"), with_end(*tokenizer, "second\n")}));
}

TEST(Corpus, EachJsonLineIsADocumentInOrder) {
  const Scratch scratch;
  const auto tokenizer = fixture_tokenizer("tokenizer_qwen2.json");
  std::string file;
  std::vector<Ids> wanted;
  for (int i = 0; i < 5000; ++i) {
    const std::string text = fmt::format("document {} {}", i, std::string(size_t(i % 900), 'x'));
    file += fmt::format("{{\"n\": {}, \"body\": \"{}\\u00e9\\n\"}}\n{}", i, text, i % 100 == 0 ? "\n" : "");
    wanted.push_back(with_end(*tokenizer, text + "\u00e9\n"));
  }
  file.pop_back();  // the last line has no newline
  const std::string path = scratch.write("a.jsonl", file);
  for (const int threads : {1, 4})
    EXPECT_EQ(read_corpus(*tokenizer, {.path = path, .key = "body", .threads = threads}).documents, wanted);
}

TEST(Corpus, ALineThatIsNotADocumentIsNamed) {
  const Scratch scratch;
  const auto tokenizer = fixture_tokenizer("tokenizer_gpt2.json");
  const auto read = [&](const std::string& lines) {
    read_corpus(*tokenizer, {.path = scratch.write("a.jsonl", lines), .threads = 2});
  };
  expect_error(Exit::data, {"a.jsonl:3: no text under the key 'text'", "content", "--jsonl_key"},
               [&] { read("{\"text\": \"a\"}\n\n{\"content\": \"b\"}\n"); });
  expect_error(
      Exit::data,
      {"a.jsonl:1: is a chat under the key 'messages' (expected a string under", "apply_chat_template"},
      [&] { read("{\"messages\": []}\n"); });
  expect_error(Exit::data, {"a.jsonl:2:11: it is not JSON", "missing closing quote", "each line"},
               [&] { read("{\"text\": \"a\"}\n{\"text\": \"\n"); });
  expect_error(Exit::data, {"a.jsonl:1:1: expected a JSON object;"}, [&] { read("[1]\n"); });
}

TEST(Corpus, BytesHaveNoEndOfTextToken) {
  const Scratch scratch;
  const auto tokenizer = open_tokenizer("byte");
  const Corpus corpus = read_corpus(*tokenizer, {.path = scratch.write("a.txt", "ab\xFF")});
  EXPECT_EQ(corpus.documents, (std::vector<Ids>{{97, 98, 255}}));
}

}  // namespace
}  // namespace cleave::text
