#include "data/document_index.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

namespace cleave::data {
namespace {

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr int64_t kIndexHeader = 34;

struct IndexType {
  DocumentIndex::Type type;
  std::string_view name;
  int64_t bytes;
};
constexpr IndexType kIndexTypes[] = {
    {DocumentIndex::Type::u8, "uint8", 1},  {DocumentIndex::Type::i8, "int8", 1},
    {DocumentIndex::Type::i16, "int16", 2}, {DocumentIndex::Type::u16, "uint16", 2},
    {DocumentIndex::Type::i32, "int32", 4}, {DocumentIndex::Type::u32, "uint32", 4},
    {DocumentIndex::Type::i64, "int64", 8}, {DocumentIndex::Type::u64, "uint64", 8},
};

// Codes 6 to 8 have different meanings in Megatron and DeepSpeed's copy of it. The token size distinguishes
// integers from floats except for 7, which is read as integers.
struct IndexCode {
  uint8_t code;
  DocumentIndex::Type type;
};
constexpr IndexCode kIndexCodes[] = {
    {1, DocumentIndex::Type::u8},  {2, DocumentIndex::Type::i8},  {3, DocumentIndex::Type::i16},
    {4, DocumentIndex::Type::i32}, {5, DocumentIndex::Type::i64}, {6, DocumentIndex::Type::u16},
    {7, DocumentIndex::Type::u32}, {8, DocumentIndex::Type::u16}, {8, DocumentIndex::Type::u64},
};

const IndexType& index_type(DocumentIndex::Type type) { return kIndexTypes[size_t(type)]; }

template <class T>
T index_word(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Calls body(i, value) for the array of T at `byte`.
template <class T, class Body>
void each_word(const InputFile& file, int64_t byte, int64_t count, const Body& body) {
  constexpr int64_t kPiece = 1 << 15;
  std::vector<std::byte> piece(size_t(std::min(count, kPiece)) * sizeof(T));
  for (int64_t at = 0; at < count; at += kPiece) {
    const int64_t n = std::min(kPiece, count - at);
    file.read(byte + at * int64_t(sizeof(T)), std::span(piece).first(size_t(n) * sizeof(T)));
    for (int64_t i = 0; i < n; ++i) body(at + i, index_word<T>(piece.data() + i * int64_t(sizeof(T))));
  }
}

}  // namespace

std::string_view name_of(DocumentIndex::Type type) { return index_type(type).name; }

DocumentIndex::DocumentIndex(const std::string& path, int64_t bin_bytes) : file_(path, Exit::data) {
  const uint8_t code = check_header();
  const int64_t tokens = check_lengths();
  find_type(code, bin_bytes, tokens);
  tokens_ = tokens;
  check_pointers();
  check_documents();
}

uint8_t DocumentIndex::check_header() {
  require(file_.size() >= kIndexHeader, Exit::data,
          "{}: is truncated: {} bytes, but the header of an index alone has {}; copy or write it again",
          path(), file_.size(), kIndexHeader);
  std::byte head[kIndexHeader];
  file_.read(0, head);
  require(std::memcmp(head, "TNTIDX", 6) != 0, Exit::data,
          "{}: byte 0: has the magic TNTIDX of an index that Megatron no longer writes; tokenize the text "
          "again",
          path());
  require(std::memcmp(head, kIndexMagic.data(), kIndexMagic.size()) == 0, Exit::data,
          "{}: byte 0: missing magic MMIDIDX of an index; write it again", path());
  const uint64_t version = index_word<uint64_t>(head + 9), sequences = index_word<uint64_t>(head + 18),
                 entries = index_word<uint64_t>(head + 26);
  require(version == 1, Exit::data,
          "{}: byte 9: version {} is not supported (expected 1); tokenize the text again", path(), version);
  const uint64_t room = uint64_t(file_.size() - kIndexHeader);
  require(sequences <= room / 12, Exit::data,
          "{}: byte 18: {} sequences need more than {} bytes; the file is truncated or damaged: copy or "
          "write it again",
          path(), sequences, file_.size());
  require(entries >= 1 && entries <= room / 8, Exit::data,
          "{}: byte 26: counts {} entries of the document index in {} bytes; it is damaged: copy or write it "
          "again",
          path(), entries, file_.size());
  const uint64_t wanted = 12 * sequences + 8 * entries;
  require(room != wanted + sequences || sequences == 0, Exit::data,
          "{}: multimodal data (a mode per sequence) is not supported; use a text data set", path());
  require(room == wanted, Exit::data,
          "{}: {} bytes, but {} sequences and {} entries of the document index make {}; it is {}: copy or "
          "write it again",
          path(), file_.size(), sequences, entries, wanted + kIndexHeader,
          room < wanted ? "truncated" : "too long");
  sequences_ = int64_t(sequences), entries_ = int64_t(entries);
  return uint8_t(head[17]);
}

int64_t DocumentIndex::pointers_at() const { return kIndexHeader + 4 * sequences_; }
int64_t DocumentIndex::documents_at() const { return kIndexHeader + 12 * sequences_; }

int64_t DocumentIndex::check_lengths() const {
  int64_t tokens = 0;
  each_word<int32_t>(file_, kIndexHeader, sequences_, [&](int64_t i, int32_t length) {
    require(length >= 0, Exit::data, "{}: byte {}: sequence {} has {} tokens; write the index again", path(),
            kIndexHeader + 4 * i, i, length);
    tokens += length;
  });
  return tokens;
}

void DocumentIndex::find_type(uint8_t code, int64_t bin_bytes, int64_t tokens) {
  bool known = false;
  for (const IndexCode& c : kIndexCodes) {
    if (c.code != code) continue;
    known = true;
    const IndexType& type = index_type(c.type);
    if (bin_bytes % type.bytes != 0 || bin_bytes / type.bytes != tokens) continue;
    type_ = c.type, token_bytes_ = type.bytes;
    return;
  }
  require(known, Exit::data, "{}: byte 17: unknown token type {} (expected 1 to 8)", path(), code);
  require(code < 6 || bin_bytes % 4 != 0 || (bin_bytes / 4 != tokens && bin_bytes / 8 != tokens), Exit::data,
          "{}: byte 17: type {} with tokens of {} bytes are floating-point numbers; tokenize the text again",
          path(), code, bin_bytes / std::max<int64_t>(1, tokens));
  fail(Exit::data,
       "{}: byte {}: sequences of {} tokens of type {}, but the .bin has {} bytes; one of the two is "
       "truncated or from another data set: copy or write both again",
       path(), kIndexHeader, tokens, code, bin_bytes);
}

void DocumentIndex::check_pointers() const {
  std::vector<int32_t> lengths(size_t(std::min<int64_t>(sequences_, 1 << 15)));
  int64_t wanted = 0;
  each_word<int64_t>(file_, pointers_at(), sequences_, [&](int64_t i, int64_t pointer) {
    require(pointer == wanted, Exit::data,
            "{}: byte {}: sequence {} starts at byte {} of the .bin, but the previous ones end at {}; write "
            "the index again",
            path(), pointers_at() + 8 * i, i, pointer, wanted);
    const size_t at = size_t(i) % lengths.size();
    if (at == 0)
      file_.read(kIndexHeader + 4 * i, std::as_writable_bytes(std::span(lengths).first(size_t(
                                           std::min<int64_t>(sequences_ - i, int64_t(lengths.size()))))));
    wanted += lengths[at] * token_bytes_;
  });
}

void DocumentIndex::check_documents() {
  int64_t before = 0;
  each_word<int64_t>(file_, documents_at(), entries_, [&](int64_t i, int64_t first) {
    require(i > 0 || first == 0, Exit::data,
            "{}: byte {}: the first document starts with sequence {} instead of 0; write the index again",
            path(), documents_at(), first);
    require(before <= first && first <= sequences_, Exit::data,
            "{}: byte {}: document {} starts with sequence {}, the previous one with {}, and the index has "
            "{} sequences; write it again",
            path(), documents_at() + 8 * i, i, first, before, sequences_);
    before = first;
  });
  // Sequences after the last completed document form one more.
  documents_ = entries_ - 1 + (before < sequences_);
}

int64_t DocumentIndex::begin_of(int64_t document) const {
  CHECK(0 <= document && document <= documents_, "document {} of {}", document, documents_);
  int64_t token = 0;
  begins(document, {&token, 1});
  return token;
}

void DocumentIndex::begins(int64_t first, std::span<int64_t> out) const {
  const int64_t count = std::clamp<int64_t>(documents_ - first, 0, int64_t(out.size()));
  std::fill(out.begin() + count, out.end(), tokens_);
  const auto sequences = out.first(size_t(count));
  if (count == 0) return;
  file_.read(documents_at() + 8 * first, std::as_writable_bytes(sequences));
  // Reads pointers of adjacent sequences together.
  std::array<int64_t, 128> pointers;
  int64_t from = 0, until = 0;
  for (int64_t& entry : sequences) {
    const int64_t sequence = entry;
    require(0 <= sequence && sequence <= sequences_, Exit::data, "{}: changed since it was opened", path());
    if (sequence >= until || sequence < from) {
      from = sequence, until = std::min(sequences_, from + int64_t(pointers.size()));
      file_.read(pointers_at() + 8 * from,
                 std::as_writable_bytes(std::span(pointers).first(size_t(until - from))));
    }
    entry = sequence == sequences_ ? tokens_ : pointers[size_t(sequence - from)] / token_bytes_;
  }
}

int64_t DocumentIndex::document_from(int64_t token) const {
  int64_t below = 0, above = documents_;  // the answer is in [below, above]
  while (below < above) {
    const int64_t middle = below + (above - below) / 2;
    begin_of(middle) < token ? below = middle + 1 : above = middle;
  }
  return below;
}

// If several documents start at the same token, the last one contains it.
int64_t DocumentIndex::document_of(int64_t token) const {
  CHECK(0 <= token && token < tokens_, "token {} of {}", token, tokens_);
  return document_from(token + 1) - 1;
}

}  // namespace cleave::data
