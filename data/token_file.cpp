#include "data/token_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "data/foreign_file.h"
#include "data/indexed_file.h"
#include "data/llmc_format.h"
#include "data/token_writer.h"

namespace cleave::data {
namespace {

using llmc::kHeaderBytes, llmc::kMagicU16, llmc::kMagicU32, llmc::kVersionU16, llmc::kVersionU32;
using llmc::kVocabU16, llmc::kVocabU32;

struct Foreign {
  int32_t magic;
  const char* what;
};
constexpr Foreign kForeign[] = {
    {20240326, "an llm.c model"},           {20240327, "an llm.c debug state"},
    {20240328, "an llm.c tokenizer"},       {20240522, "an llm.c multiple-choice evaluation set"},
    {20240527, "an llm.c optimizer state"}, {20240803, "an llm.c Llama 3 model"}};

int32_t word(std::span<const uint8_t> bytes, int64_t index) {
  int32_t value = 0;
  std::memcpy(&value, bytes.data() + index * 4, 4);
  return value;
}

bool starts_with(std::span<const uint8_t> bytes, std::string_view prefix) {
  return bytes.size() >= prefix.size() && std::memcmp(bytes.data(), prefix.data(), prefix.size()) == 0;
}

// Widens `count` tokens, which may be at the end of `out`, and returns the largest.
template <class T>
uint32_t widen(const uint8_t* in, int64_t count, int32_t* out) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, in + i * int64_t(sizeof(T)), sizeof(T));
    largest = std::max(largest, uint32_t(token));
    out[i] = int32_t(token);
  }
  return largest;
}

}  // namespace

std::string_view name_of(TokenFile::Kind kind) {
  constexpr std::string_view names[] = {"bytes",        "header-less uint16", "header-less uint32",
                                        "llm.c uint16", "llm.c uint32",       "Megatron"};
  return names[size_t(kind)];
}

int64_t TokenFile::token_bytes() const {
  if (kind_ == Kind::indexed) return index_->token_bytes();
  if (kind_ == Kind::bytes) return 1;
  return kind_ == Kind::llmc_u32 || kind_ == Kind::u32 ? 4 : 2;
}

int64_t TokenFile::default_vocab() const {
  switch (kind_) {
    case Kind::bytes:
      return 256;
    case Kind::u16:
      return 65536;
    case Kind::u32:
      return kUnknownVocab;
    case Kind::llmc_u16:
      return kVocabU16;
    case Kind::llmc_u32:
      return kVocabU32;
    case Kind::indexed:
      return token_bytes() < 4 ? int64_t{1} << 8 * token_bytes() : kUnknownVocab;
  }
  return 0;
}

TokenFile::TokenFile(const std::string& path, Options options)
    : file_(options.format == Format::detect && is_indexed(path) ? indexed_names(path).bin : path,
            Exit::data),
      name_(options.name.empty() ? file_.path() : options.name) {
  require(file_.size() > 0, Exit::data, "{}: is empty; use a file with tokens or text", file_.path());
  if (options.format == Format::detect && is_indexed(path)) {
    open_indexed();
    vocab_ = options.vocab > 0 ? options.vocab : default_vocab();
    return;
  }
  std::vector<uint8_t> head(size_t(std::min(file_.size(), kHeaderBytes)));
  file_.read(0, std::as_writable_bytes(std::span(head)));
  detect(options.format, head);
  if (kind_ == Kind::u16 && options.format == Format::detect) choose_width(options);
  vocab_ = options.vocab > 0 ? options.vocab : default_vocab();
  if (kind_ == Kind::llmc_u16 || kind_ == Kind::llmc_u32) {
    read_llmc_header(head);
    if (const int32_t said = word(head, 3); options.vocab <= 0 && said > 0) vocab_ = said;
    return;
  }
  require(file_.size() % token_bytes() == 0, Exit::data,
          "{}: {} bytes are not divisible by {} bytes per token; the file is truncated or not a token file: "
          "write it again, or rename a text so that it does not end in .bin",
          path, file_.size(), token_bytes());
  size_ = file_.size() / token_bytes();
}

// True if ids at the start, in the middle and at the end of the file are below `bound`.
template <class T>
bool TokenFile::fits(int64_t bound) const {
  constexpr int64_t kPiece = 1 << 16;
  const int64_t width = sizeof(T), tokens = file_.size() / width, some = std::min(kPiece, tokens);
  if (file_.size() % width != 0) return false;
  std::vector<T> ids(static_cast<size_t>(some));
  for (const int64_t at : {int64_t{0}, (tokens - some) / 2, tokens - some}) {
    file_.read(at * width, std::as_writable_bytes(std::span(ids)));
    if (int64_t(*std::max_element(ids.begin(), ids.end())) >= bound) return false;
  }
  return true;
}

void TokenFile::choose_width(const Options& o) {
  constexpr int64_t kLargestVocab = 1 << 20;  // of any tokenizer
  const int64_t known = o.bound > 0 ? o.bound : o.vocab, bound = known > 0 ? known : kLargestVocab;
  const bool asks = o.token_bytes == 0 && fits<uint32_t>(bound);
  require(!asks || !fits<uint16_t>(bound), Exit::usage,
          "{}: the width of a token is ambiguous (got a .bin without a header; its uint16 and uint32 values "
          "both fit {}); set --token_bytes 2 or --token_bytes 4",
          path(), known > 0 ? fmt::format("a vocabulary of {}", known) : "a vocabulary");
  if (o.token_bytes == 4 || asks) kind_ = Kind::u32;
}

void TokenFile::open_indexed() {
  const IndexedNames names = indexed_names(path());
  kind_ = Kind::indexed;
  index_.emplace(names.idx, file_.size());
  size_ = index_->tokens();
  if (::access(names.mask.c_str(), F_OK) == 0) mask_.emplace(names.mask, size_);
}

void TokenFile::detect(Format format, std::span<const uint8_t> bytes) {
  if (format == Format::bytes || format == Format::u16) {
    kind_ = format == Format::bytes ? Kind::bytes : Kind::u16;
    return;
  }
  const int32_t magic = bytes.size() >= 4 ? word(bytes, 0) : 0;
  if (magic == kMagicU16 || magic == kMagicU32) {
    kind_ = magic == kMagicU16 ? Kind::llmc_u16 : Kind::llmc_u32;
    return;
  }
  for (const Foreign& foreign : kForeign)
    require(magic != foreign.magic, Exit::data, "{}: is {} (magic {}), not tokens; use the tokenized text",
            path(), foreign.what, magic);
  require(
      format != Format::llmc, Exit::data,
      "{}: starts with {} instead of the llm.c magic {} or {}; write it again with llm.c or `cleave data`",
      path(), magic, kMagicU16, kMagicU32);
  require(!starts_with(bytes, "\x1f\x8b"), Exit::data,
          "{}: is compressed with gzip; decompress it first: gunzip -k {}", path(), path());
  require(!starts_with(bytes, "MMIDIDX") && !starts_with(bytes, "TNTIDX"), Exit::data,
          "{}: is the index of a Megatron data set; name it NAME.idx next to NAME.bin, and pass NAME.bin",
          path());
  kind_ = path().ends_with(".bin") ? Kind::u16 : Kind::bytes;
  if (kind_ == Kind::bytes) refuse_foreign(path(), bytes);
}

void TokenFile::read_llmc_header(std::span<const uint8_t> bytes) {
  const int64_t file_bytes = file_.size();
  require(file_bytes >= kHeaderBytes, Exit::data,
          "{}: is truncated: {} bytes, but an llm.c header alone has {}; copy or write it again", path(),
          file_bytes, kHeaderBytes);
  const int32_t wanted = kind_ == Kind::llmc_u16 ? kVersionU16 : kVersionU32;
  require(
      word(bytes, 1) == wanted, Exit::data,
      "{}: has version {} of the llm.c format with magic {}; only version {} is supported: tokenize the text "
      "again",
      path(), word(bytes, 1), word(bytes, 0), wanted);
  size_ = word(bytes, 2);
  require(word(bytes, 3) >= 0, Exit::data,
          "{}: invalid vocabulary size {} in the header; write it again from the text", path(),
          word(bytes, 3));
  require(size_ > 0, Exit::data, "{}: invalid token count {} in the header; write it again from the text",
          path(), size_);
  const int64_t expected = kHeaderBytes + size_ * token_bytes();
  require(
      file_bytes == expected, Exit::data,
      "{}: {} bytes, but its header counts {} tokens, which makes {} bytes; it is {}: copy or write it again",
      path(), file_bytes, size_, expected, file_bytes < expected ? "truncated" : "too long");
  first_ = kHeaderBytes;
}

std::string TokenFile::describe() const {
  if (kind_ != Kind::indexed)
    return fmt::format("{}: {} tokens, {}, vocabulary {}", path(), size_, name_of(kind_),
                       vocab_ == kUnknownVocab ? "not said" : std::to_string(vocab_));
  return fmt::format("{}: {} tokens in {} documents, {} {}{}, vocabulary {}", path(), size_,
                     index_->documents(), name_of(kind_), name_of(index_->type()),
                     mask_ ? " with a loss mask" : "",
                     vocab_ == kUnknownVocab ? "not said" : std::to_string(vocab_));
}

void TokenFile::fail_at(int64_t index, int64_t token) const {
  fail(Exit::data,
       "{}: token {} is {}, but the vocabulary has {} entries; tokenize the text with the model's tokenizer, "
       "or choose "
       "a model with a larger vocabulary",
       name(), index, token, vocab_);
}

void TokenFile::read(Range range, int32_t* out) const {
  CHECK(0 <= range.begin && range.begin <= range.end && range.end <= size_, "{}: tokens [{}, {}) of {}",
        path(), range.begin, range.end, size_);
  // Reads the file's bytes to the end of `out`, and widens them toward its start.
  const int64_t count = range.size(), width = token_bytes();
  if (width > int64_t(sizeof(int32_t))) return read_wide(range, out);
  uint8_t* in = reinterpret_cast<uint8_t*>(out) + count * (int64_t(sizeof(int32_t)) - width);
  file_.read(first_ + range.begin * width, std::as_writable_bytes(std::span(in, size_t(count * width))));
  uint32_t largest = 0;
  const bool negative =
      index_ && (index_->type() == DocumentIndex::Type::i8 || index_->type() == DocumentIndex::Type::i16);
  if (width == 1)
    largest = negative ? widen<int8_t>(in, count, out) : widen<uint8_t>(in, count, out);
  else if (width == 2)
    largest = negative ? widen<int16_t>(in, count, out) : widen<uint16_t>(in, count, out);
  else
    largest = widen<uint32_t>(in, count, out);
  if (count == 0 || int64_t(largest) < vocab_) [[likely]]
    return;
  for (int64_t i = 0; i < count; ++i)
    if (int64_t(uint32_t(out[i])) >= vocab_)
      fail_at(range.begin + i, index_ ? int64_t(out[i]) : int64_t(uint32_t(out[i])));
}

// Reads 64-bit ids, which older Megatron tools write.
void TokenFile::read_wide(Range range, int32_t* out) const {
  std::vector<int64_t> piece(size_t(std::min<int64_t>(range.size(), 1 << 12)));
  for (int64_t at = range.begin; at < range.end; at += int64_t(piece.size())) {
    const auto part = std::span(piece).first(size_t(std::min(range.end - at, int64_t(piece.size()))));
    file_.read(at * int64_t(sizeof(int64_t)), std::as_writable_bytes(part));
    for (size_t i = 0; i < part.size(); ++i) {
      if (uint64_t(part[i]) >= uint64_t(vocab_)) fail_at(at + int64_t(i), part[i]);
      *out++ = int32_t(part[i]);
    }
  }
}

void TokenFile::read_mask(Range range, uint8_t* out) const {
  if (mask_) return mask_->read(range, out);
  std::fill_n(out, range.size(), uint8_t{1});
}

void TokenFile::require_unchanged() const {
  file_.require_unchanged();
  if (index_) index_->require_unchanged();
  if (mask_) mask_->require_unchanged();
}

void TokenFile::note_contents() {
  file_.note_contents();
  if (index_) index_->note_contents();
  if (mask_) mask_->note_contents();
}

void TokenFile::check_all() const {
  if (default_vocab() <= vocab_ && kind_ != Kind::indexed && kind_ != Kind::llmc_u16 &&
      kind_ != Kind::llmc_u32)
    return;
  std::vector<int32_t> piece(1 << 16);
  for (int64_t at = 0; at < size_; at += int64_t(piece.size()))
    read({at, std::min(size_, at + int64_t(piece.size()))}, piece.data());
}

int32_t TokenFile::at(int64_t index) const {
  int32_t token = 0;
  read({index, index + 1}, &token);
  return token;
}

void write_llmc(const std::string& path, std::span<const int32_t> tokens, int64_t vocab) {
  require(!tokens.empty(), Exit::data, "{}: no tokens to write; use a text that is not empty", path);
  const int32_t largest = *std::max_element(tokens.begin(), tokens.end());
  TokenWriter writer(path, vocab, std::max<int64_t>(largest + int64_t{1}, vocab) <= kVocabU16);
  writer.append(tokens);
  writer.finish();
}

}  // namespace cleave::data
