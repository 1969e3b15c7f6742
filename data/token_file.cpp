#include "data/token_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

namespace cleave {
namespace {

constexpr int64_t kHeaderBytes = 1024;
constexpr int32_t kMagicU16 = 20240520, kVersionU16 = 1;
constexpr int32_t kMagicU32 = 20240801, kVersionU32 = 7;
constexpr int64_t kVocabU16 = 50257, kVocabU32 = 128256;  // GPT-2 and Llama 3

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

int64_t token_bytes(TokenFile::Kind kind) {
  if (kind == TokenFile::Kind::bytes) return 1;
  return kind == TokenFile::Kind::llmc_u32 ? 4 : 2;
}

int64_t default_vocab(TokenFile::Kind kind) {
  switch (kind) {
    case TokenFile::Kind::bytes:
      return 256;
    case TokenFile::Kind::u16:
      return 65536;
    case TokenFile::Kind::llmc_u16:
      return kVocabU16;
    case TokenFile::Kind::llmc_u32:
      return kVocabU32;
  }
  return 0;
}

// Widens `count` tokens, which may lie at the end of `out`, and returns the largest.
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
  constexpr std::string_view names[] = {"bytes", "header-less uint16", "llm.c uint16", "llm.c uint32"};
  return names[size_t(kind)];
}

TokenFile::TokenFile(const std::string& path, Options options) : file_(path, Exit::data) {
  require(file_.size() > 0, Exit::data, "{}: is empty; give a file that holds tokens or text", path);
  std::vector<uint8_t> head(size_t(std::min(file_.size(), kHeaderBytes)));
  file_.read(0, std::as_writable_bytes(std::span(head)));
  detect(options.format, head);
  vocab_ = options.vocab > 0 ? options.vocab : default_vocab(kind_);
  if (kind_ == Kind::llmc_u16 || kind_ == Kind::llmc_u32) {
    read_llmc_header(head);
    if (const int32_t said = word(head, 3); options.vocab <= 0 && said > 0) vocab_ = said;
    return;
  }
  require(file_.size() % token_bytes(kind_) == 0, Exit::data,
          "{}: has an odd size of {} bytes, but a header-less token file holds 2 bytes a token; it is "
          "truncated, or not "
          "a token file: write it again, or rename a text so that it does not end in .bin",
          path, file_.size());
  size_ = file_.size() / token_bytes(kind_);
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
    require(magic != foreign.magic, Exit::data, "{}: is {} (magic {}), not tokens; give the tokenized corpus",
            path(), foreign.what, magic);
  require(format != Format::llmc, Exit::data,
          "{}: starts with {} where an llm.c token file has the magic {} or {}; write it again with llm.c's "
          "tokenization or with `cleave data`",
          path(), magic, kMagicU16, kMagicU32);
  require(!starts_with(bytes, "\x1f\x8b"), Exit::data,
          "{}: is compressed with gzip; decompress it first: gunzip -k {}", path(), path());
  require(!starts_with(bytes, "MMIDIDX") && !starts_with(bytes, "TNTIDX"), Exit::data,
          "{}: is the index of a Megatron data set; give a text, an llm.c .bin or a header-less uint16 .bin",
          path());
  kind_ = path().ends_with(".bin") ? Kind::u16 : Kind::bytes;
}

void TokenFile::read_llmc_header(std::span<const uint8_t> bytes) {
  const int64_t file_bytes = file_.size();
  require(file_bytes >= kHeaderBytes, Exit::data,
          "{}: is truncated: {} bytes, but an llm.c header alone has {}; copy or write it again", path(),
          file_bytes, kHeaderBytes);
  const int32_t wanted = kind_ == Kind::llmc_u16 ? kVersionU16 : kVersionU32;
  require(word(bytes, 1) == wanted, Exit::data,
          "{}: has version {} of the llm.c format with magic {}; only version {} is known: tokenize the text "
          "again",
          path(), word(bytes, 1), word(bytes, 0), wanted);
  size_ = word(bytes, 2);
  require(word(bytes, 3) >= 0, Exit::data,
          "{}: its header says a vocabulary of {}; write it again from the text", path(), word(bytes, 3));
  require(size_ > 0, Exit::data, "{}: its header counts {} tokens; write it again from the text", path(),
          size_);
  const int64_t expected = kHeaderBytes + size_ * token_bytes(kind_);
  require(
      file_bytes == expected, Exit::data,
      "{}: {} bytes, but its header counts {} tokens, which makes {} bytes; it is {}: copy or write it again",
      path(), file_bytes, size_, expected, file_bytes < expected ? "truncated" : "too long");
  first_ = kHeaderBytes;
}

std::string TokenFile::describe() const {
  return fmt::format("{}: {} tokens, {}, vocabulary {}", path(), size_, name_of(kind_), vocab_);
}

void TokenFile::fail_at(int64_t index, int64_t token) const {
  fail(Exit::data,
       "{}: token {} is {}, but the vocabulary has {} entries; tokenize the text with the model's tokenizer, "
       "or choose "
       "a model with a larger vocabulary",
       path(), index, token, vocab_);
}

void TokenFile::read(Range range, int32_t* out) const {
  CHECK(0 <= range.begin && range.begin <= range.end && range.end <= size_, "{}: tokens [{}, {}) of {}",
        path(), range.begin, range.end, size_);
  // The file's bytes go to the end of `out`, from where they widen towards its beginning.
  const int64_t count = range.size(), width = token_bytes(kind_);
  uint8_t* in = reinterpret_cast<uint8_t*>(out) + count * (int64_t(sizeof(int32_t)) - width);
  file_.read(first_ + range.begin * width, std::as_writable_bytes(std::span(in, size_t(count * width))));
  uint32_t largest = 0;
  switch (width) {
    case 1:
      largest = widen<uint8_t>(in, count, out);
      break;
    case 2:
      largest = widen<uint16_t>(in, count, out);
      break;
    default:
      largest = widen<uint32_t>(in, count, out);
      break;
  }
  if (count == 0 || int64_t(largest) < vocab_) [[likely]]
    return;
  for (int64_t i = 0; i < count; ++i)
    if (int64_t(uint32_t(out[i])) >= vocab_) fail_at(range.begin + i, uint32_t(out[i]));
}

void TokenFile::check_all() const {
  if (default_vocab(kind_) <= vocab_ && kind_ != Kind::llmc_u16 && kind_ != Kind::llmc_u32) return;
  std::vector<int32_t> piece(1 << 16);
  for (int64_t at = 0; at < size_; at += int64_t(piece.size()))
    read({at, std::min(size_, at + int64_t(piece.size()))}, piece.data());
}

int32_t TokenFile::at(int64_t index) const {
  int32_t token = 0;
  read({index, index + 1}, &token);
  return token;
}

namespace {

template <class T>
void append_tokens(std::vector<uint8_t>& out, std::span<const int32_t> tokens) {
  const size_t begin = out.size();
  out.resize(begin + tokens.size() * sizeof(T));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const T token = T(tokens[i]);
    std::memcpy(out.data() + begin + i * sizeof(T), &token, sizeof(T));
  }
}

void write_whole(const std::string& path, std::span<const uint8_t> bytes) {
  const std::string partial = path + ".partial";
  auto broken = [&] {
    const int error = errno;
    std::remove(partial.c_str());
    fail(Exit::data, "{}: cannot be written: {}; check the folder, its permissions and the free space", path,
         std::strerror(error));
  };
  std::FILE* file = std::fopen(partial.c_str(), "wb");
  if (!file) broken();
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if (std::fclose(file) != 0 || !written) broken();
  if (std::rename(partial.c_str(), path.c_str()) != 0) broken();
}

}  // namespace

void write_llmc(const std::string& path, std::span<const int32_t> tokens, int64_t vocab) {
  require(!tokens.empty(), Exit::data, "{}: there are no tokens to write; give a text that is not empty",
          path);
  require(tokens.size() <= size_t(std::numeric_limits<int32_t>::max()), Exit::data,
          "{}: {} tokens, but one llm.c file holds at most 2147483647; split the text into several files",
          path, tokens.size());
  const auto [least, largest] = std::minmax_element(tokens.begin(), tokens.end());
  require(*least >= 0, Exit::data, "{}: token {} is {}; token ids are not negative", path,
          least - tokens.begin(), *least);
  require(vocab == 0 || (*largest < vocab && vocab <= std::numeric_limits<int32_t>::max()), Exit::data,
          "{}: token {} is {}, outside the vocabulary of {}", path, largest - tokens.begin(), *largest,
          vocab);
  const bool narrow = std::max<int64_t>(*largest + int64_t{1}, vocab) <= kVocabU16;
  std::array<int32_t, kHeaderBytes / 4> header{};
  header[0] = narrow ? kMagicU16 : kMagicU32;
  header[1] = narrow ? kVersionU16 : kVersionU32;
  header[2] = int32_t(tokens.size());
  header[3] = int32_t(vocab);
  std::vector<uint8_t> bytes(kHeaderBytes);
  std::memcpy(bytes.data(), header.data(), kHeaderBytes);
  narrow ? append_tokens<uint16_t>(bytes, tokens) : append_tokens<uint32_t>(bytes, tokens);
  write_whole(path, bytes);
}

}  // namespace cleave
