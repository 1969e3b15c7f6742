// A corpus as the ids of its documents: in order, by several threads, in memory that does not grow with it.
//
// A text file is one document, or those between the tokens that end a text where it has such. Each line of a
// .jsonl file is one: an object that has the document's text under a key. After each document comes the token
// that ends a text, where the tokenizer has one.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "data/text/tokenizer.h"

namespace cleave::text {

struct CorpusOptions {
  std::string path;
  std::string key = "text";  // of a document in a line of JSON
  int threads = 1;
};

// Called in order, by the thread that asked.
struct CorpusSink {
  std::function<void(std::span<const int32_t>)> tokens;  // more of the current document
  std::function<void()> end_document;
  std::function<void(int64_t bytes)> progress;  // read and done; may be empty
};

// Whether the file is one of documents in lines of JSON, by its name.
bool is_json_lines(const std::string& path);

// Error(data) names the file, the line, and what is wrong there. A text is cut at line ends where that gives
// the same ids (Tokenizer::can_cut_at_lines), and is in memory as a whole where it does not.
void tokenize_corpus(const Tokenizer& tokenizer, const CorpusOptions& options, const CorpusSink& sink);

}  // namespace cleave::text
