#include "data/token_writer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "data/llmc_format.h"

namespace cleave::data {

TokenWriter::TokenWriter(const std::string& path, int64_t vocab)
    : TokenWriter(path, vocab, vocab <= llmc::kVocabU16) {}

TokenWriter::TokenWriter(std::string path, int64_t vocab, bool narrow)
    : path_(std::move(path)), partial_(path_ + ".partial"), vocab_(vocab), narrow_(narrow) {
  require(vocab <= std::numeric_limits<int32_t>::max(), Exit::data, "{}: vocabulary of {} is too large",
          path_, vocab);
  file_ = std::fopen(partial_.c_str(), "wb");
  if (!file_) broken();
  const std::array<char, llmc::kHeaderBytes>
      unknown{};  // finish() writes the header, when all tokens are counted
  write(unknown.data(), unknown.size());
}

TokenWriter::~TokenWriter() {
  if (!file_) return;
  std::fclose(file_);
  std::remove(partial_.c_str());
}

void TokenWriter::broken() {
  fail(Exit::data, "{}: cannot be written: {}; check the folder, its permissions and the free space", path_,
       std::strerror(errno));
}

void TokenWriter::write(const void* bytes, size_t size) {
  if (std::fwrite(bytes, 1, size, file_) != size) broken();
}

void TokenWriter::append(std::span<const int32_t> tokens) {
  if (tokens.empty()) return;
  const auto [least, largest] = std::minmax_element(tokens.begin(), tokens.end());
  require(*least >= 0, Exit::data, "{}: token {} is {}; token ids are not negative", path_,
          tokens_ + (least - tokens.begin()), *least);
  require(vocab_ == 0 || *largest < vocab_, Exit::data, "{}: token {} is {}, outside the vocabulary of {}",
          path_, tokens_ + (largest - tokens.begin()), *largest, vocab_);
  CHECK(!narrow_ || *largest <= UINT16_MAX, "token {} as uint16", *largest);
  tokens_ += int64_t(tokens.size());
  require(tokens_ <= std::numeric_limits<int32_t>::max(), Exit::data,
          "{}: {} tokens, but one llm.c file holds at most 2147483647; split the text into several files",
          path_, tokens_);
  if (!narrow_) return write(tokens.data(), tokens.size_bytes());
  shorts_.assign(tokens.begin(), tokens.end());
  write(shorts_.data(), shorts_.size() * sizeof(uint16_t));
}

void TokenWriter::finish() {
  require(tokens_ > 0, Exit::data, "{}: no tokens to write; use a text that is not empty", path_);
  const std::array<int32_t, 4> head = {narrow_ ? llmc::kMagicU16 : llmc::kMagicU32,
                                       narrow_ ? llmc::kVersionU16 : llmc::kVersionU32, int32_t(tokens_),
                                       int32_t(vocab_)};
  if (std::fseek(file_, 0, SEEK_SET) != 0) broken();
  write(head.data(), sizeof head);
  std::FILE* const file = std::exchange(file_, nullptr);
  const auto give_up = [&] {
    const int error = errno;
    std::remove(partial_.c_str());
    errno = error;
    broken();
  };
  if (std::fclose(file) != 0 || std::rename(partial_.c_str(), path_.c_str()) != 0) give_up();
}

}  // namespace cleave::data
