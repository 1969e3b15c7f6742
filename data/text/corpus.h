// Tokenizes a corpus into the ids of its documents: in order, with several threads, in memory that does not
// grow with it.
//
// A text file is one document, or several if it contains end-of-text tokens. Each line of a .jsonl file is
// one document: an object with its text under a key. The tokenizer's end-of-text token, if any, follows each
// document.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "data/text/tokenizer.h"

namespace cleave::text {

struct CorpusOptions {
  std::string path;
  std::string key = "text";  // of the text in a JSON line
  int threads = 1;
};

// Called in order, on the calling thread.
struct CorpusSink {
  std::function<void(std::span<const int32_t>)> tokens;  // appends to the current document
  std::function<void()> end_document;
  std::function<void(int64_t bytes)> progress;  // bytes read and processed; may be empty
};

// True if the file name means JSON lines.
bool is_json_lines(const std::string& path);

// Throws Error(data) with file, line and fault. Cuts a text at line ends if that gives the same ids
// (Tokenizer::can_cut_at_lines); otherwise loads it completely.
void tokenize_corpus(const Tokenizer& tokenizer, const CorpusOptions& options, const CorpusSink& sink);

}  // namespace cleave::text
