#include "data/csv.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>

#include "core/error.h"

namespace cleave::data {
namespace {

constexpr int kLargestPixel = 16;
constexpr int64_t kTestEvery = 5;

// Reads the whole file; zlib passes uncompressed data through.
std::string read_all(const std::string& path) {
  struct stat status {};
  const bool found = ::stat(path.c_str(), &status) == 0;
  require(found, Exit::data, "{}: cannot be opened: {}; give the path of the digits csv", path,
          std::strerror(errno));
  require(!S_ISDIR(status.st_mode), Exit::data, "{}: is a directory; give the path of the csv in it", path);
  require(S_ISREG(status.st_mode), Exit::data, "{}: is not a regular file; save its contents to a file first",
          path);
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  require(file != nullptr, Exit::data, "{}: cannot be opened: {}", path, std::strerror(errno));
  std::string text;
  char chunk[1 << 14];
  int got = 0;
  while ((got = gzread(file.get(), chunk, sizeof chunk)) > 0) text.append(chunk, size_t(got));
  int error = Z_OK;
  const char* message = gzerror(file.get(), &error);
  require(got == 0 && (error == Z_OK || error == Z_STREAM_END), Exit::data,
          "{}: cannot be decompressed: {}; the file is truncated or damaged, copy it again", path, message);
  return text;
}

struct CsvLine {
  const std::string& path;
  int64_t line;
};

int parse_field(std::string_view field, int64_t column, int largest, const CsvLine& at) {
  int value = -1;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  require(error == std::errc() && end == field.data() + field.size() && 0 <= value && value <= largest,
          Exit::data, "{}:{}: column {} is '{}'; it must be an integer from 0 to {}", at.path, at.line,
          column + 1, field, largest);
  return value;
}

void parse_row(std::string_view row, const CsvLine& at, Digits& digits) {
  int64_t columns = 1;
  for (char c : row) columns += c == ',';
  require(columns == Digits::kFeatures + 1, Exit::data,
          "{}:{}: has {} columns; a row has {}: 64 pixels and the label, separated by commas", at.path,
          at.line, columns, Digits::kFeatures + 1);
  for (int64_t column = 0; column < columns; ++column) {
    const size_t comma = std::min(row.find(','), row.size());
    const bool label = column == Digits::kFeatures;
    const int value =
        parse_field(row.substr(0, comma), column, label ? Digits::kClasses - 1 : kLargestPixel, at);
    if (label)
      digits.labels.push_back(value);
    else
      digits.features.push_back(float(value) / kLargestPixel);
    row.remove_prefix(std::min(comma + 1, row.size()));
  }
}

}  // namespace

Digits read_digits(const std::string& path) {
  const std::string text = read_all(path);
  Digits digits;
  std::string_view rest = text;
  for (int64_t line = 1; !rest.empty(); ++line) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view row = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (!row.empty()) parse_row(row, {path, line}, digits);
  }
  require(digits.rows() > 0, Exit::data, "{}: has no rows; give the digits csv", path);
  return digits;
}

DigitsSplit split_digits(const Digits& digits) {
  DigitsSplit split;
  for (int64_t row = 0; row < digits.rows(); ++row) {
    Digits& part = row % kTestEvery == kTestEvery - 1 ? split.test : split.train;
    const float* features = digits.features.data() + row * Digits::kFeatures;
    part.features.insert(part.features.end(), features, features + Digits::kFeatures);
    part.labels.push_back(digits.labels[size_t(row)]);
  }
  return split;
}

}  // namespace cleave::data
