#include "data/text/sentencepiece_file.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/printable.h"
#include "core/utf8.h"

namespace cleave::text {
namespace {

constexpr size_t kMostPieces = size_t{1} << 20, kLongestPiece = 4096, kLongestReplacement = 256;  // bytes
enum class PieceType : uint64_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};
enum class ModelType : uint64_t { unigram = 1, bpe = 2, word = 3, character = 4 };

// Name of a field for messages, formatted only in case of an error.
class Place {
 public:
  Place(const std::string& path, std::string field) : path_(path), field_(std::move(field)) {}
  Place in(std::string_view part) const { return {path_, fmt::format("{}.{}", field_, part)}; }
  template <class Got, class Expected>
  void check(bool right, std::string_view part, const Got& got, const Expected& expected) const {
    if (!right) in(part).refuse(fmt::format("{}", got), fmt::format("{}", expected));
  }
  [[noreturn]] void refuse(std::string_view got, std::string_view expected) const {
    fail(Exit::data,
         "{}: {} is wrong (got {}, expected {}); download the file again, or give its tokenizer.json", path_,
         field_, got, expected);
  }

 private:
  const std::string& path_;
  std::string field_;
};

struct Field {
  enum Wire : uint8_t { number = 0, eight_bytes = 1, bytes = 2, four_bytes = 5 };
  uint64_t id = 0, wire = 0;
  uint64_t value = 0;        // of integers
  std::string_view content;  // of all other types
  std::string_view whole;    // including its tag

  void expect(Wire wanted, const Place& place, std::string_view part) const {
    place.check(wire == wanted, part, wire, int(wanted));
  }
};

// Fields of one protobuf message in file order.
class Message {
 public:
  Message(std::string_view bytes, const Place& place) : bytes_(bytes), place_(place) {}

  bool next(Field& field) {
    if (at_ == bytes_.size()) return false;
    const size_t begin = at_;
    const uint64_t tag = number();
    field = {tag >> 3, tag & 7, 0, {}, {}};
    if (field.wire == Field::number)
      field.value = number();
    else if (field.wire == Field::bytes)
      field.content = take(number());
    else if (field.wire == Field::eight_bytes || field.wire == Field::four_bytes)
      field.content = take(field.wire == Field::four_bytes ? 4 : 8);
    else
      place_.refuse(fmt::format("wire type {}", field.wire), "0, 1, 2 or 5");
    field.whole = bytes_.substr(begin, at_ - begin);
    return true;
  }

 private:
  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = uint8_t(take(1)[0]);
      value |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    place_.refuse("a number of more than 10 bytes", "a number");
  }
  std::string_view take(uint64_t n) {
    if (n > bytes_.size() - at_)
      place_.refuse(fmt::format("{} more bytes", bytes_.size() - at_), fmt::format("{}", n));
    at_ += size_t(n);
    return bytes_.substr(at_ - size_t(n), size_t(n));
  }

  std::string_view bytes_;
  size_t at_ = 0;
  const Place& place_;
};

bool is_utf8(std::string_view text) {
  std::string scratch;
  return valid_utf8(text, scratch).data() == text.data();
}

bool is_byte_name(std::string_view piece) {  // <0x0A>
  const auto digit = [](char c) { return ('0' <= c && c <= '9') || ('A' <= c && c <= 'F'); };
  return piece.size() == 6 && piece.starts_with("<0x") && digit(piece[3]) && digit(piece[4]) &&
         piece[5] == '>';
}

// A table of texts and replacements: the size of a double-array trie in bytes, the trie in blocks of 256
// units, and the replacements, each with a terminating 0. The library follows the offset of a unit and the
// value of a leaf without bounds checks.
class Charsmap {
 public:
  Charsmap(std::string_view blob, const Place& place) : place_(place) {
    constexpr size_t kBlock = 256 * sizeof(uint32_t);
    uint32_t bytes = 0;
    place.check(blob.size() > sizeof bytes, "size", blob.size(), "more than 4 bytes");
    std::memcpy(&bytes, blob.data(), sizeof bytes);
    blob.remove_prefix(sizeof bytes);
    place.check(bytes > 0 && bytes % kBlock == 0 && bytes < blob.size(), "trie size", bytes,
                "a multiple of 1024 bytes that leaves room for the replacements");
    units_.resize(bytes / sizeof(uint32_t));
    std::memcpy(units_.data(), blob.data(), bytes);
    texts_ = blob.substr(bytes);
  }

  void check() const {
    place_.check(texts_.back() == '\0', "replacements", "no zero byte at their end", "one");
    place_.check(is_utf8(texts_), "replacements", "other bytes", "UTF-8");
    for (size_t at = 0, end = 0; at < texts_.size(); at = end + 1) {
      end = texts_.find('\0', at);
      place_.check(end - at <= kLongestReplacement, "replacements", end - at, "at most 256 bytes each");
    }
    for (size_t i = 0; i < units_.size(); ++i) check_unit(i);
  }

 private:
  static bool is_leaf(uint32_t unit) { return unit >> 31 != 0; }

  void check_unit(size_t i) const {
    const uint32_t unit = units_[i], value = unit & 0x7fffffff;
    if (is_leaf(unit))
      return place_.check(value < texts_.size() && (value == 0 || texts_[value - 1] == '\0'), "trie", value,
                          "the start of a replacement");
    // Holds for all lower bytes, because the size is a multiple of a block.
    const size_t children = i ^ (size_t(unit >> 10) << ((unit & 0x200) >> 6));
    place_.check(children < units_.size(), "trie", children, units_.size() - 1);
    if (unit & 0x100) place_.check(is_leaf(units_[children]), "trie", "a text without a replacement", "one");
  }

  const Place& place_;
  std::vector<uint32_t> units_;
  std::string_view texts_;
};

class Model {
 public:
  explicit Model(const std::string& path) : path_(path), place_(path, "the SentencePiece model") {}

  std::string checked(std::string_view bytes) {
    Message message(bytes, place_);
    std::string kept;
    kept.reserve(bytes.size());
    for (Field f; message.next(f);) {
      if (f.id == 1) piece(f);
      if (f.id == 2) trainer(f);
      if (f.id == 3) normalizer(f, "normalizer_spec");
      if (f.id == 5) normalizer(f, "denormalizer_spec");
      if (f.id != 4) kept += f.whole;  // self_test_data
    }
    check_whole();
    return kept;
  }

 private:
  void piece(const Field& field) {
    const Place place(path_, fmt::format("pieces[{}]", pieces_++));
    place.check(pieces_ <= kMostPieces, "id", pieces_ - 1, "less than 2^20");
    field.expect(Field::bytes, place, "wire type");
    std::string_view text;
    uint64_t type = uint64_t(PieceType::normal);
    Message message(field.content, place);
    for (Field f; message.next(f);) {
      if (f.id == 1) f.expect(Field::bytes, place, "piece"), text = f.content;
      if (f.id == 2) score(f, place);
      if (f.id == 3) f.expect(Field::number, place, "type"), type = f.value;
    }
    place.check(!text.empty() && text.size() <= kLongestPiece, "piece", text.size(), "1 to 4096 bytes");
    place.check(is_utf8(text), "piece", "other bytes", "UTF-8");
    place.check(1 <= type && type <= uint64_t(PieceType::byte), "type", type, "1 to 6");
    const auto known = PieceType(type);
    place.check(known != PieceType::byte || is_byte_name(text), "piece", in_line(text),
                "a byte such as <0x0A>");
    unknown_ += known == PieceType::unknown;
    if (text.find('\0') != std::string_view::npos)
      (known == PieceType::user_defined ? zero_in_symbol_ : zero_in_piece_) = true;
  }

  static void score(const Field& field, const Place& place) {
    float value = 0;
    field.expect(Field::four_bytes, place, "score");
    std::memcpy(&value, field.content.data(), sizeof value);
    place.check(std::isfinite(value), "score", value, "a finite number");
  }

  void trainer(const Field& field) {
    constexpr std::pair<uint64_t, const char*> kIds[] = {
        {40, "unk_id"}, {41, "bos_id"}, {42, "eos_id"}, {43, "pad_id"}};
    const Place place(path_, "trainer_spec");
    field.expect(Field::bytes, place, "wire type");
    Message message(field.content, place);
    for (Field f; message.next(f);) {
      if (f.id == 3) {
        f.expect(Field::number, place, "model_type");
        place.check(1 <= f.value && f.value <= uint64_t(ModelType::character), "model_type", f.value,
                    "1 to 4");
        type_ = ModelType(f.value);
      }
      for (const auto& [id, name] : kIds)
        if (f.id == id) f.expect(Field::number, place, name), ids_.emplace_back(name, int64_t(f.value));
    }
  }

  void normalizer(const Field& field, const char* name) const {
    const Place place(path_, name), table = place.in("precompiled_charsmap");
    field.expect(Field::bytes, place, "wire type");
    Message message(field.content, place);
    for (Field f; message.next(f);) {
      if (f.id != 2) continue;
      f.expect(Field::bytes, table, "wire type");
      if (!f.content.empty()) Charsmap(f.content, table).check();
    }
  }

  void check_whole() const {
    const auto most = int64_t(pieces_) - 1;
    place_.check(pieces_ > 0, "pieces", 0, "a vocabulary");
    place_.check(unknown_ == 1, "pieces of type unknown", unknown_, 1);
    // The library truncates a piece at its first zero byte when it builds a trie.
    place_.check(!zero_in_symbol_ && (type_ == ModelType::bpe || !zero_in_piece_), "pieces", "a zero byte",
                 "none");
    const Place place(path_, "trainer_spec");
    for (const auto& [name, id] : ids_)
      place.check(-1 <= id && id <= most, name, id, fmt::format("-1 to {}", most));
  }

  const std::string& path_;
  Place place_;
  size_t pieces_ = 0, unknown_ = 0;
  bool zero_in_symbol_ = false, zero_in_piece_ = false;
  ModelType type_ = ModelType::unigram;  // default of the format
  std::vector<std::pair<const char*, int64_t>> ids_;
};

}  // namespace

std::string checked_sentencepiece(std::string_view model, const std::string& path) {
  return Model(path).checked(model);
}

}  // namespace cleave::text
