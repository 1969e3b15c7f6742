#include "app/model_file.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/input_file.h"
#include "core/json.h"
#include "text/utf8.h"

namespace cleave::app {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kLargestFile = int64_t{256} << 20;

// What links of the folder may lead to: the folder itself; for a snapshot of Hugging Face's cache, the
// model's folder there.
fs::path root_of(const fs::path& folder) {
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path())
    if (at.filename() == "snapshots" && at.parent_path().filename().string().starts_with("models--"))
      return at.parent_path();
  return folder;
}

void require_inside(const fs::path& file) {
  std::error_code error;
  const fs::path folder = fs::canonical(file.has_parent_path() ? file.parent_path() : ".", error);
  const fs::path real = error ? fs::path() : fs::canonical(file, error);
  require(!error, Exit::checkpoint, "{} cannot be read: {}", file.string(), error.message());
  const fs::path root = root_of(folder), below = real.lexically_relative(root);
  require(
      !below.empty() && *below.begin() != "..", Exit::checkpoint,
      "{}: the link leaves the model's folder (got {}, expected a file below {}); copy the file there if it "
      "belongs to the model",
      file.string(), real.string(), root.string());
}

// Whether the bytes are fields of a message of Protocol Buffers to their end, the first of them a piece.
bool is_sentencepiece(std::string_view bytes) {
  size_t at = 0;
  const auto varint = [&](uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && at < bytes.size(); shift += 7) {
      const uint8_t byte = uint8_t(bytes[at++]);
      value |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  };
  if (!bytes.starts_with('\n')) return false;  // field 1, of counted length
  while (at < bytes.size()) {
    uint64_t tag = 0, length = 0;
    if (!varint(tag) || tag >> 3 == 0) return false;
    const bool counted = (tag & 7) == 2, fixed = (tag & 7) == 1 || (tag & 7) == 5;
    if (!counted && !fixed && (tag & 7) != 0) return false;
    if (fixed)
      length = (tag & 7) == 1 ? 8 : 4;
    else if (!varint(length))
      return false;
    if (!counted && !fixed) continue;
    if (length > bytes.size() - at) return false;
    at += length;
  }
  return true;
}

bool is_plain_text(std::string_view bytes) {
  std::string scratch;
  return bytes.find('\0') == bytes.npos && text::valid_utf8(bytes, scratch).data() == bytes.data();
}

}  // namespace

std::string model_file_text(const fs::path& file) {
  require_inside(file);
  std::string bytes = InputFile(file.string(), Exit::checkpoint).text(kLargestFile);
  const std::string kind = file.extension().string();
  const bool is_json = kind == ".json", is_model = kind == ".model";
  const bool good = is_json    ? json_or_nothing(bytes).is_object()
                    : is_model ? is_sentencepiece(bytes)
                               : is_plain_text(bytes);
  require(good, Exit::checkpoint, "{}: not of the form of its name (expected {}); correct it, or remove it",
          file.string(),
          is_json    ? "a JSON object"
          : is_model ? "a SentencePiece model"
                     : "UTF-8 text");
  return bytes;
}

}  // namespace cleave::app
