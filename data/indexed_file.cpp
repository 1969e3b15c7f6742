#include "data/indexed_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/range.h"
#include "data/partial_file.h"

namespace cleave::data {
namespace {

constexpr int64_t kNarrowVocab = 65500;  // Megatron writes uint16 below it
constexpr int64_t kLongestSequence = std::numeric_limits<int32_t>::max();

bool ends_with_name(const std::string& name, std::string_view ending) {
  return name.size() > ending.size() && name.ends_with(ending);
}

}  // namespace

IndexedNames indexed_names(const std::string& name) {
  const bool ending = ends_with_name(name, ".bin") || ends_with_name(name, ".idx");
  const std::string stem = ending ? name.substr(0, name.size() - 4) : name;
  return {stem + ".bin", stem + ".idx", stem + ".mask"};
}

bool is_indexed(const std::string& name) {
  const IndexedNames names = indexed_names(name);
  const bool stem = name != names.bin && name != names.idx;
  return ::access(names.idx.c_str(), F_OK) == 0 && !(stem && ::access(name.c_str(), F_OK) == 0);
}

struct IndexedWriter::Files {
  explicit Files(const IndexedNames& n)
      : names(n),
        bin(n.bin, "wb"),
        idx(n.idx, "wb"),
        lengths(std::make_unique<PartialFile>(n.idx + ".lengths", "w+b")) {}

  IndexedNames names;
  PartialFile bin, idx;
  std::unique_ptr<PartialFile> lengths;  // int64 tokens of each document, until finish()
  std::unique_ptr<PartialFile> mask;
  int64_t vocab = 0, token_bytes = 2;
  int64_t tokens = 0, documents = 0, sequences = 0;
  int64_t first = 0;  // first token of the current document
  std::vector<uint8_t> buffer;
  uint8_t mask_byte = 0;
  bool finished = false;

  void write_tokens(std::span<const int32_t> in);
  void write_mask(int64_t count, const uint8_t* mask_or_ones);
  void write_index();
  template <class Body>
  void each_document(const Body& body);
};

IndexedWriter::IndexedWriter(const std::string& name, int64_t vocab, int64_t token_bytes) {
  CHECK(token_bytes == 0 || token_bytes == 4 || (token_bytes == 2 && vocab <= 1 << 16),
        "{} bytes a token of {}", token_bytes, vocab);
  require(vocab > 0 && vocab <= int64_t{1} << 31, Exit::data, "{}: a vocabulary of {} entries", name, vocab);
  files_ = std::make_unique<Files>(indexed_names(name));
  files_->vocab = vocab;
  files_->token_bytes = token_bytes ? token_bytes : vocab < kNarrowVocab ? 2 : 4;
}

IndexedWriter::~IndexedWriter() = default;

int64_t IndexedWriter::tokens() const { return files_->tokens; }
int64_t IndexedWriter::documents() const { return files_->documents; }

void IndexedWriter::Files::write_tokens(std::span<const int32_t> in) {
  buffer.resize(in.size() * size_t(token_bytes));
  for (size_t i = 0; i < in.size(); ++i) {
    require(0 <= in[i] && in[i] < vocab, Exit::data, "{}: token {} is {}, outside the vocabulary of {}",
            names.bin, tokens + int64_t(i), in[i], vocab);
    const uint16_t narrow = uint16_t(in[i]);
    const void* from = token_bytes == 2 ? static_cast<const void*>(&narrow) : &in[i];
    std::memcpy(buffer.data() + i * size_t(token_bytes), from, size_t(token_bytes));
  }
  bin.write(buffer.data(), buffer.size());
}

// Appends the mask bits of `count` tokens after the `tokens` written ones; ones without a mask.
void IndexedWriter::Files::write_mask(int64_t count, const uint8_t* mask_or_ones) {
  buffer.clear();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t bit = (tokens + i) % 8;
    if (!mask_or_ones || mask_or_ones[i]) mask_byte = uint8_t(mask_byte | 1 << bit);
    if (bit == 7) buffer.push_back(std::exchange(mask_byte, uint8_t{0}));
  }
  mask->write(buffer.data(), buffer.size());
}

void IndexedWriter::append(std::span<const int32_t> tokens, std::span<const uint8_t> mask) {
  Files& f = *files_;
  CHECK(!f.finished, "{}: tokens after the end", f.names.bin);
  CHECK(mask.empty() || mask.size() == tokens.size(), "{} tokens with a mask of {}", tokens.size(),
        mask.size());
  if (!mask.empty() && !f.mask) {
    f.mask = std::make_unique<PartialFile>(f.names.mask, "wb");
    constexpr int64_t kPiece = 1 << 20;
    const int64_t before = std::exchange(f.tokens, 0);
    while (f.tokens < before) {
      const int64_t count = std::min(kPiece, before - f.tokens);
      f.write_mask(count, nullptr);
      f.tokens += count;
    }
  }
  constexpr size_t kPiece = 1 << 16;
  for (size_t at = 0; at < tokens.size(); at += kPiece) {
    const auto piece = tokens.subspan(at, std::min(kPiece, tokens.size() - at));
    f.write_tokens(piece);
    if (f.mask) f.write_mask(int64_t(piece.size()), mask.empty() ? nullptr : mask.data() + at);
    f.tokens += int64_t(piece.size());
  }
}

void IndexedWriter::end_document() {
  Files& f = *files_;
  const int64_t length = f.tokens - std::exchange(f.first, f.tokens);
  if (length == 0) return;
  f.lengths->write(length);
  f.documents += 1, f.sequences += ceil_div(length, kLongestSequence);
}

template <class Body>
void IndexedWriter::Files::each_document(const Body& body) {
  lengths->rewind();
  std::vector<int64_t> piece(1 << 13);
  while (const size_t bytes = lengths->read(piece.data(), piece.size() * sizeof(int64_t)))
    for (size_t i = 0; i < bytes / sizeof(int64_t); ++i) body(piece[i]);
}

// A document is one sequence, or several if it exceeds the maximum length of a sequence.
void IndexedWriter::Files::write_index() {
  idx.write("MMIDIDX\0", 9);
  idx.write(uint64_t{1});
  idx.write(uint8_t(token_bytes == 2 ? 8 : 4));
  idx.write(uint64_t(sequences));
  idx.write(uint64_t(documents + 1));
  const auto each_sequence = [&](const auto& body) {
    each_document([&](int64_t length) {
      for (; length > 0; length -= std::min(length, kLongestSequence))
        body(std::min(length, kLongestSequence));
    });
  };
  each_sequence([&](int64_t length) { idx.write(int32_t(length)); });
  int64_t pointer = 0, sequence = 0;
  each_sequence([&](int64_t length) { idx.write(std::exchange(pointer, pointer + length * token_bytes)); });
  each_document([&](int64_t length) {
    idx.write(std::exchange(sequence, sequence + ceil_div(length, kLongestSequence)));
  });
  idx.write(sequence);
}

// Removes an old .bin first and renames the new one last, so that mismatched files never form a data set.
void IndexedWriter::finish() {
  end_document();
  Files& f = *files_;
  CHECK(!std::exchange(f.finished, true), "{}: finished twice", f.names.bin);
  require(f.tokens > 0, Exit::data, "{}: no tokens to write; use a text that is not empty", f.names.bin);
  f.write_index();
  f.lengths.reset();
  if (f.mask && f.tokens % 8 != 0) f.mask->write(f.mask_byte);
  f.bin.complete(), f.idx.complete();
  if (f.mask) f.mask->complete();
  f.bin.remove_old();
  f.idx.appear();
  if (f.mask)
    f.mask->appear();
  else
    PartialFile(f.names.mask, "wb").remove_old();
  f.bin.appear();
}

}  // namespace cleave::data
