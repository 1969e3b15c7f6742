#include "data/foreign_file.h"

#include <algorithm>
#include <string_view>

#include "core/error.h"

namespace cleave::data {
namespace {

using namespace std::literals;

constexpr const char* kRows =
    "write its texts to a .jsonl, a line {\"text\": ...} for each (with pandas: "
    "frame[[\"text\"]].to_json(\"data.jsonl\", orient=\"records\", lines=True))";
constexpr const char* kUnpack = "unpack it and give the text or the .jsonl that is in it";
constexpr const char* kNumbers =
    "write its ids as nanoGPT's token file: array.astype(numpy.uint16).tofile(\"data.bin\")";
constexpr const char* kUtf8 = "make it UTF-8: iconv -f UTF-16 -t UTF-8 FILE > data.txt";
constexpr const char* kTexts = "write its texts to a .txt or a .jsonl";
constexpr const char* kNoText =
    "a model of texts learns nothing from it; give a text, a .jsonl or a token file";
constexpr const char* kWeights = "weights go to --model, as a folder with their config.json";

struct Kind {
  std::string_view sign, what;
  const char* advice;
  size_t at = 0;  // offset of the sign
};

constexpr Kind kMagics[] = {
    {"PAR1"sv, "a Parquet file", kRows},
    {"ARROW1"sv, "an Arrow file", kRows},
    {"FEA1"sv, "a Feather file", kRows},
    {"Obj\x01"sv, "an Avro file", kRows},
    {"SQLite format 3"sv, "an SQLite data base", kRows},
    {"\x89HDF\r\n"sv, "an HDF5 file", kRows},
    {"\x93NUMPY"sv, "an array of numpy", kNumbers},
    {"PK\x03\x04"sv, "a zip archive (or a .npz, .docx, .xlsx or .pt)", kUnpack},
    {"PK\x05\x06"sv, "an empty zip archive", kUnpack},
    {"\x1f\x8b"sv, "compressed with gzip", "decompress it first: gunzip -k FILE"},
    {"\x28\xB5\x2F\xFD"sv, "compressed with zstd", "decompress it first: unzstd FILE"},
    {"\xFD\x37zXZ"sv, "compressed with xz", "decompress it first: unxz -k FILE"},
    {"BZh"sv, "compressed with bzip2", "decompress it first: bunzip2 -k FILE"},
    {"\x04\x22\x4D\x18"sv, "compressed with lz4", "decompress it first: unlz4 FILE"},
    {"7z\xBC\xAF\x27\x1C"sv, "a 7z archive", kUnpack},
    {"Rar!\x1A\x07"sv, "a rar archive", kUnpack},
    {"ustar"sv, "a tar archive", kUnpack, 257},
    {"%PDF-"sv, "a PDF", kTexts},
    {"\xD0\xCF\x11\xE0\xA1\xB1"sv, "a document of an office program", kTexts},
    {"{\\rtf"sv, "a document in RTF", kTexts},
    {"GGUF"sv, "a model in GGUF", kWeights},
    {"{\""sv, "a safetensors file", kWeights, 8},
    {"\x80\x02"sv, "a pickle", kRows},
    {"\x80\x03"sv, "a pickle", kRows},
    {"\x80\x04"sv, "a pickle", kRows},
    {"\x80\x05"sv, "a pickle", kRows},
    {"\xFF\xFE"sv, "a text in UTF-16", kUtf8},
    {"\xFE\xFF"sv, "a text in UTF-16", kUtf8},
    {"\x89PNG\r\n"sv, "a PNG image", kNoText},
    {"\xFF\xD8\xFF"sv, "a JPEG image", kNoText},
    {"GIF87a"sv, "a GIF image", kNoText},
    {"GIF89a"sv, "a GIF image", kNoText},
    {"II*\0"sv, "a TIFF image", kNoText},
    {"MM\0*"sv, "a TIFF image", kNoText},
    {"WEBP"sv, "a WebP image", kNoText, 8},
    {"WAVE"sv, "a sound file", kNoText, 8},
    {"ftyp"sv, "a video or an image", kNoText, 4},
    {"OggS"sv, "a sound file", kNoText},
    {"fLaC"sv, "a sound file", kNoText},
    {"ID3\x03"sv, "a sound file", kNoText},
    {"ID3\x04"sv, "a sound file", kNoText},
    {"\x7F"
     "ELF"sv,
     "a program", kNoText}};

constexpr Kind kEndings[] = {{".csv"sv, "a table", kRows},
                             {".tsv"sv, "a table", kRows},
                             {".parquet"sv, "a Parquet file", kRows},
                             {".arrow"sv, "an Arrow file", kRows},
                             {".npy"sv, "an array of numpy", kNumbers},
                             {".orc"sv, "an ORC file", kRows},
                             {".npz"sv, "arrays of numpy", kNumbers},
                             {".pkl"sv, "a pickle", kRows},
                             {".pickle"sv, "a pickle", kRows},
                             {".safetensors"sv, "a safetensors file", kWeights},
                             {".json"sv, "one JSON value", kRows},
                             {".bmp"sv, "an image", kNoText}};

// True if a binary length precedes the sign; a text would have letters there.
bool has_length_before(std::string_view head) {
  return head.substr(0, 8).find('\0') != std::string_view::npos;
}

// True for Latin letters in UTF-16 without a byte order mark: every other byte is 0.
bool is_wide(std::string_view head) {
  const size_t pairs = std::min<size_t>(head.size() / 2, 512);
  size_t zeros[2] = {0, 0};
  for (size_t i = 0; i < 2 * pairs; ++i) zeros[i % 2] += head[i] == '\0';
  return pairs >= 8 && std::max(zeros[0], zeros[1]) * 10 > pairs * 9 &&
         std::min(zeros[0], zeros[1]) * 10 < pairs;
}

bool begins_as_json(std::string_view head) {
  const size_t at = head.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  return at != std::string_view::npos && (head[at] == '{' || head[at] == '[');
}

bool is_object_a_line(std::string_view head) {
  if (head.starts_with("\xEF\xBB\xBF")) head.remove_prefix(3);
  head.remove_prefix(std::min(head.find_first_not_of(" \t\r\n"), head.size()));
  const std::string_view line = head.substr(0, head.find_first_of("\r\n"));
  return line.starts_with("{\"") && (line.size() == head.size() || line.ends_with('}'));
}

bool is_lines(std::string_view path) { return path.ends_with(".jsonl") || path.ends_with(".ndjson"); }

}  // namespace

void refuse_foreign(const std::string& path, std::span<const uint8_t> bytes) {
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto refuse = [&](std::string_view what, std::string advice) {
    if (const size_t at = advice.find("FILE"); at != std::string::npos) advice.replace(at, 4, path);
    fail(Exit::data, "{}: is {}, not text; {}", path, what, advice);
  };
  for (const Kind& kind : kMagics) {
    const bool there = head.size() >= kind.at && head.substr(kind.at).starts_with(kind.sign);
    if (there && (kind.at == 0 || kind.at > 8 || has_length_before(head))) refuse(kind.what, kind.advice);
  }
  if (is_wide(head)) refuse("a text in UTF-16", kUtf8);
  std::string name = path;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return char(std::tolower(c)); });
  const bool json = begins_as_json(head), lines = is_object_a_line(head);
  for (const Kind& kind : kEndings)
    if (name.ends_with(kind.sign) && (kind.sign != ".json" || (json && !lines)))
      refuse(kind.what, kind.advice);
  require(is_lines(path) || !lines, Exit::data,
          "{}: holds a JSON object on each line, not text; name it so that it ends in .jsonl, and its "
          "documents are read",
          path);
}

}  // namespace cleave::data
