#include "app/raw_bytes.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

namespace cleave {
namespace {

std::string beginning_of(const std::string& path) {
  constexpr size_t kEnough = size_t{64} << 10;
  std::ifstream in(path, std::ios::binary);
  std::string text(kEnough, '\0');
  in.read(text.data(), std::streamsize(text.size()));
  text.resize(size_t(in.gcount()));
  return text;
}

bool is_json_lines(std::string_view text) {
  text = text.substr(std::min(text.find_first_not_of(" \t\r\n\xEF\xBB\xBF"), text.size()));
  const size_t end = text.find('\n');
  if (!text.starts_with('{')) return false;
  return end == std::string_view::npos ? text.starts_with("{\"")  // a line longer than what was read
                                       : nlohmann::json::accept(text.substr(0, end));
}

// What the bytes are, if they are no text that a model should learn.
std::string_view kind_of(std::string_view text) {
  constexpr std::pair<std::string_view, std::string_view> kinds[] = {
      {"PAR1", "is a Parquet file"},
      {"ARROW1", "is an Arrow file"},
      {"PK\x03\x04", "is a zip file"},
      {"\x28\xB5\x2F\xFD", "is compressed with zstd"},
      {"\xFD\x37zXZ", "is compressed with xz"},
      {"BZh", "is compressed with bzip2"}};
  for (const auto& [magic, says] : kinds)
    if (text.starts_with(magic)) return says;
  return is_json_lines(text) ? "holds a JSON object on each line" : "";
}

}  // namespace

void warn_of_raw_bytes(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (path.empty() || path.ends_with(".bin")) continue;
    const std::string_view kind = kind_of(beginning_of(path));
    if (kind.empty()) continue;
    std::fprintf(stderr,
                 "warning: %s %s, and is read as raw bytes: the model learns its brackets, names and escapes "
                 "as if they were text; write the texts themselves to a file and give that\n",
                 path.c_str(), std::string(kind).c_str());
    return;
  }
}

}  // namespace cleave
