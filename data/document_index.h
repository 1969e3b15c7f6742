// Document boundaries in the tokens of an indexed data set (data/indexed_file.h): its .idx.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/input_file.h"
#include "core/range.h"

namespace cleave::data {

// Reads by offset: memory use does not grow with the number of documents.
class DocumentIndex {
 public:
  enum class Type { u8, i8, i16, u16, i32, u32, i64, u64 };

  // Reads the whole file once and checks it against the size of .bin. Throws Error(data) with the file and
  // the byte of the fault.
  DocumentIndex(const std::string& path, int64_t bin_bytes);

  Type type() const { return type_; }
  int64_t token_bytes() const { return token_bytes_; }
  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  const std::string& path() const { return file_.path(); }

  // Token range of a document, possibly empty. Consecutive sequences of one document are one text.
  Range document(int64_t index) const { return {begin_of(index), begin_of(index + 1)}; }
  // Fills `out` with the first tokens of documents from `first` on; the value after the last document is
  // tokens().
  void begins(int64_t first, std::span<int64_t> out) const;
  // The document that contains the token, and the first that begins at or after it; documents() if none.
  int64_t document_of(int64_t token) const;
  int64_t document_from(int64_t token) const;

  void note_contents() { file_.note_contents(); }
  void require_unchanged() const { file_.require_unchanged(); }

 private:
  uint8_t check_header();  // type code
  void find_type(uint8_t code, int64_t bin_bytes, int64_t tokens);
  int64_t check_lengths() const;  // number of tokens
  void check_pointers() const;
  void check_documents();
  int64_t begin_of(int64_t document) const;
  int64_t pointers_at() const;
  int64_t documents_at() const;

  InputFile file_;
  Type type_ = Type::u16;
  int64_t token_bytes_ = 0, tokens_ = 0, documents_ = 0;
  int64_t sequences_ = 0, entries_ = 0;  // header fields S and D
};

std::string_view name_of(DocumentIndex::Type type);

}  // namespace cleave::data
