#include "app/commands/inspect_data.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "core/cores.h"
#include "core/printable.h"
#include "data/text/corpus.h"
#include "data/text/tokenizer.h"
#include "data/token_file.h"

namespace cleave::app {
namespace {

// Prints the lengths of documents and the share of tokens with a loss.
void print_summary(const data::TokenFile& file) {
  std::printf("%s\n", file.describe().c_str());
  const data::DocumentIndex* index = file.documents();
  if (!index || index->documents() == 0) return;
  int64_t shortest = file.size(), longest = 0, before = 0;
  std::vector<int64_t> begins(1 << 12);
  for (int64_t d = 1; d <= index->documents(); d += int64_t(begins.size())) {
    const auto some = std::span(begins).first(
        size_t(std::min<int64_t>(int64_t(begins.size()), index->documents() + 1 - d)));
    index->begins(d, some);
    for (const int64_t begin : some) {
      shortest = std::min(shortest, begin - before), longest = std::max(longest, begin - before);
      before = begin;
    }
  }
  std::printf("documents: %lld to %lld tokens, %.1f in the mean\n", static_cast<long long>(shortest),
              static_cast<long long>(longest), double(file.size()) / double(index->documents()));
  if (!file.masked()) return;
  int64_t ones = 0;
  std::vector<uint8_t> mask(1 << 16);
  for (int64_t at = 0; at < file.size(); at += int64_t(mask.size())) {
    const Range range{at, std::min(file.size(), at + int64_t(mask.size()))};
    file.read_mask(range, mask.data());
    ones += std::count(mask.begin(), mask.begin() + range.size(), uint8_t{1});
  }
  std::printf("loss mask: %lld tokens have a loss, %.1f %%\n", static_cast<long long>(ones),
              100 * double(ones) / double(file.size()));
}

// Returns the text of a token if it is known; tokens of a text are its bytes.
std::string text_of(const data::TokenFile& file, const text::Tokenizer* tokenizer, int32_t token) {
  if (tokenizer) return in_quotes(std::string(tokenizer->bytes_of(token)));
  return file.kind() == data::TokenFile::Kind::bytes ? in_quotes(std::string(1, char(token))) : std::string();
}

void print_tokens(const data::TokenFile& file, const text::Tokenizer* tokenizer, Range range) {
  std::vector<int32_t> tokens(size_t(range.size()));
  std::vector<uint8_t> mask(tokens.size());
  file.read(range, tokens.data()), file.read_mask(range, mask.data());
  const data::DocumentIndex* index = file.documents();
  int64_t document = index ? index->document_of(range.begin) : 0;
  for (int64_t t = range.begin; t < range.end; ++t) {
    while (index && document + 1 < index->documents() && index->document(document + 1).begin <= t) ++document;
    if (index && (t == range.begin || index->document(document).begin == t)) {
      const Range all = index->document(document);
      std::printf("document %lld: tokens %lld to %lld%s\n", static_cast<long long>(document),
                  static_cast<long long>(all.begin), static_cast<long long>(all.end - 1),
                  all.begin < t ? ", from before" : "");
    }
    const size_t at = size_t(t - range.begin);
    std::string line = fmt::format("{:>10}  {:>7}  {}", t, tokens[at], text_of(file, tokenizer, tokens[at]));
    if (!mask[at]) line += line.ends_with(' ') ? "no loss" : "  no loss";
    line.erase(line.find_last_not_of(' ') + 1);
    std::printf("%s\n", line.c_str());
  }
}

// Documents in JSON lines have no token file: this tokenizes them and keeps the tokens to show.
class LinesOfJson {
 public:
  LinesOfJson(const InspectData& o, const text::Tokenizer& tokenizer) : o_(o), tokenizer_(tokenizer) {
    text::CorpusSink sink;
    sink.tokens = [&](std::span<const int32_t> ids) { add(ids); };
    sink.end_document = [&] { end_document(); };
    text::tokenize_corpus(tokenizer, {.path = o.file, .key = o.key, .threads = threads_of_process(0).threads},
                          sink);
  }

  void print() const {
    std::printf("%s: %lld tokens in %lld documents, lines of JSON with the tokenizer %s, vocabulary %lld\n",
                o_.file.c_str(), static_cast<long long>(size_), static_cast<long long>(documents_),
                o_.tokenizer.empty() ? "byte" : o_.tokenizer.c_str(),
                static_cast<long long>(tokenizer_.vocab_size()));
    if (documents_ > 0)
      std::printf("documents: %lld to %lld tokens, %.1f in the mean\n", static_cast<long long>(shortest_),
                  static_cast<long long>(longest_), double(size_) / double(documents_));
    if (o_.at < 0) return;
    require(o_.at < size_, Exit::usage, "--at {}: {} has {} tokens; give 0 to {}", o_.at, o_.file, size_,
            size_ - 1);
    for (const Shown& d : shown_) {
      std::printf("document %lld: tokens %lld to %lld%s\n", static_cast<long long>(d.number),
                  static_cast<long long>(d.all.begin), static_cast<long long>(d.all.end - 1),
                  d.all.begin < o_.at ? ", from before" : "");
      for (int64_t t = std::max(d.all.begin, o_.at); t < std::min(d.all.end, o_.at + int64_t(kept_.size()));
           ++t) {
        const int32_t id = kept_[size_t(t - o_.at)];
        std::printf("%10lld  %7d  %s\n", static_cast<long long>(t), id,
                    in_quotes(std::string(tokenizer_.bytes_of(id))).c_str());
      }
    }
  }

 private:
  struct Shown {
    int64_t number;
    Range all;
  };

  void add(std::span<const int32_t> ids) {
    for (const int32_t id : ids) {
      if (o_.at >= 0 && size_ >= o_.at && size_ < o_.at + o_.count) kept_.push_back(id);
      ++size_;
    }
  }
  void end_document() {
    const Range all{begin_, size_};
    if (o_.at >= 0 && all.end > o_.at && all.begin < o_.at + o_.count) shown_.push_back({documents_, all});
    shortest_ = documents_ == 0 ? all.size() : std::min(shortest_, all.size());
    longest_ = std::max(longest_, all.size());
    ++documents_, begin_ = size_;
  }

  const InspectData& o_;
  const text::Tokenizer& tokenizer_;
  int64_t size_ = 0, documents_ = 0, begin_ = 0, shortest_ = 0, longest_ = 0;
  std::vector<int32_t> kept_;
  std::vector<Shown> shown_;
};

}  // namespace

int inspect_data(const InspectData& o) {
  if (text::is_json_lines(o.file)) {
    const std::unique_ptr<text::Tokenizer> tokenizer =
        text::open_tokenizer(o.tokenizer.empty() ? "byte" : o.tokenizer);
    LinesOfJson(o, *tokenizer).print();
    return 0;
  }
  const data::TokenFile file(o.file, {.token_bytes = o.token_bytes});
  print_summary(file);
  if (o.at < 0) return 0;
  require(o.at < file.size(), Exit::usage, "--at {}: {} has {} tokens; give 0 to {}", o.at, file.path(),
          file.size(), file.size() - 1);
  const std::unique_ptr<text::Tokenizer> tokenizer =
      o.tokenizer.empty() ? nullptr : text::open_tokenizer(o.tokenizer);
  print_tokens(file, tokenizer.get(), {o.at, std::min(file.size(), o.at + o.count)});
  return 0;
}

}  // namespace cleave::app
