#include "app/model_file.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/input_file.h"
#include "core/json.h"
#include "core/utf8.h"
#include "data/text/sentencepiece_file.h"

namespace cleave::app {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kLargestFile = int64_t{256} << 20;

// Returns the root of allowed link targets: the folder itself, or the model's folder in the Hugging
// Face cache if the folder is one of its snapshots.
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
  require(!error, Exit::checkpoint, "{}: cannot be read: {}", file.string(), error.message());
  const fs::path root = root_of(folder), below = real.lexically_relative(root);
  require(
      !below.empty() && *below.begin() != "..", Exit::checkpoint,
      "{}: the link leaves the model's folder (got {}, expected a file below {}); copy the file there if it "
      "belongs to the model",
      file.string(), real.string(), root.string());
}

bool is_plain_text(std::string_view bytes) {
  std::string scratch;
  return bytes.find('\0') == bytes.npos && valid_utf8(bytes, scratch).data() == bytes.data();
}

}  // namespace

std::string model_file_text(const fs::path& file) {
  require_inside(file);
  std::string bytes = InputFile(file.string(), Exit::checkpoint).text(kLargestFile);
  const std::string kind = file.extension().string();
  if (kind == ".model") try {
      text::checked_sentencepiece(bytes, file.string());
      return bytes;
    } catch (const Error& e) {
      fail(Exit::checkpoint, "{}", e.what());
    }
  const bool is_json = kind == ".json";
  require(is_json ? json_or_nothing(bytes).is_object() : is_plain_text(bytes), Exit::checkpoint,
          "{}: the content does not match the name (expected {}); correct it, or remove it", file.string(),
          is_json ? "a JSON object" : "UTF-8 text");
  return bytes;
}

}  // namespace cleave::app
