#include "data/data_sources.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <numeric>
#include <optional>
#include <sstream>

namespace cleave::data {
namespace {

namespace fs = std::filesystem;

std::optional<double> weight_of(std::string_view word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return {};
  return value;
}

double require_weight(const std::string& word, const std::string& where) {
  const std::optional<double> weight = weight_of(word);
  require(weight.has_value(), Exit::usage,
          "{}: '{}' is not a weight; write weights and files in turn: \"0.7 a.bin 0.3 b.bin\"", where, word);
  return *weight;
}

// Parses lines of a weight and a path, which may contain blanks; errors name `path`.
std::vector<DataFile> read_list(const std::string& list, const std::string& path) {
  std::istringstream lines(list);
  std::vector<DataFile> out;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const size_t begin = line.find_first_not_of(" \t\r"), last = line.find_last_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    line = line.substr(begin, last + 1 - begin);
    const size_t blank = std::min(line.find_first_of(" \t"), line.size()),
                 file = line.find_first_not_of(" \t", blank);
    const std::string where = fmt::format("{}:{}", path, number);
    const double weight = require_weight(line.substr(0, blank), where);
    require(file != std::string::npos, Exit::usage, "{}: missing file after the weight {}", where,
            line.substr(0, blank));
    out.push_back({weight, line.substr(file)});
  }
  require(!out.empty(), Exit::usage, "{}: is empty; write one source per line: its weight and its file",
          path);
  return out;
}

// Weights each file with its size, as one concatenated file would.
std::vector<DataFile> by_size(const std::vector<std::string>& paths, const std::string& data) {
  require(!paths.empty(), Exit::data,
          "{}: contains no matching file; names that start with a dot do not count", data);
  std::vector<DataFile> out;
  for (const std::string& path : paths)
    out.push_back({double(std::max<int64_t>(1, InputFile(path, Exit::data).size())), path});
  return out;
}

// True for the index and the mask of an indexed file, which are not token files.
bool is_companion(const fs::path& path) {
  if (path.extension() != ".idx" && path.extension() != ".mask") return false;
  return fs::exists(fs::path(path).replace_extension(".bin"));
}

// Files in the folder, without subfolders, sorted by name.
std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file() && !entry.path().filename().string().starts_with('.') &&
        !is_companion(entry.path()))
      paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  ::glob(pattern.c_str(), 0, nullptr, &found);  // sorted
  std::vector<std::string> paths;
  for (size_t i = 0; i < found.gl_pathc; ++i)
    if (fs::is_regular_file(found.gl_pathv[i]) && !is_companion(found.gl_pathv[i]))
      paths.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  return paths;
}

std::vector<DataFile> sources_in(const std::string& data, const char* option) {
  if (data.starts_with("@\n")) return read_list(data.substr(2), option);
  if (data.starts_with('@'))
    return read_list(InputFile(data.substr(1), Exit::usage).text(int64_t{1} << 24), data.substr(1));
  if (fs::is_directory(data)) return by_size(files_in(data), data);
  std::istringstream text(data);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  const bool there = ::access(data.c_str(), F_OK) == 0;
  if (!there && data.find_first_of("*?[") != std::string::npos) return by_size(matches_of(data), data);
  const bool blend = words.size() > 1 && weight_of(words[0]) && !there;
  const bool listed = words.size() > 1 && !there &&
                      std::all_of(words.begin(), words.end(),
                                  [](const std::string& w) { return ::access(w.c_str(), F_OK) == 0; });
  if (listed && !blend) return by_size(words, data);
  if (!blend) return {{1, data}};
  std::vector<DataFile> out;
  for (size_t i = 0; i < words.size(); i += 2) {
    const double weight = require_weight(words[i], option);
    require(i + 1 < words.size(), Exit::usage, "{}: missing file after the weight {}", option, words[i]);
    out.push_back({weight, words[i + 1]});
  }
  return out;
}

}  // namespace

std::vector<DataFile> sources_of_data(const std::string& data, const char* option) {
  return sources_in(data, option);
}

std::string as_data(const std::vector<DataFile>& sources) {
  if (sources.size() == 1) return sources[0].path;
  std::string list = "@\n";
  for (const DataFile& s : sources) list += fmt::format("{} {}\n", s.weight, s.path);
  return list;
}

std::vector<std::string> files_of_data(const std::string& data, const char* option) {
  std::vector<std::string> paths;
  for (DataFile& source : sources_in(data, option)) paths.push_back(std::move(source.path));
  return paths;
}

DataSources::DataSources(const std::string& data, const TokenFile::Options& options, const char* option,
                         const std::map<std::string, std::string>& texts) {
  std::vector<double> weights;
  for (const DataFile& source : sources_in(data, option)) {
    weights.push_back(source.weight);
    TokenFile::Options mine = options;
    if (const auto made_of = texts.find(source.path); made_of != texts.end()) mine.name = made_of->second;
    files_.emplace_back(source.path, mine);
  }
  shares_ = Blend::shares_of(weights);
}

std::vector<TokenSource> DataSources::sources() const {
  std::vector<TokenSource> out;
  for (size_t i = 0; i < files_.size(); ++i) out.push_back({&files_[i], shares_[i]});
  return out;
}

int64_t DataSources::tokens() const {
  return std::accumulate(files_.begin(), files_.end(), int64_t{0},
                         [](int64_t sum, const TokenFile& f) { return sum + f.size(); });
}

bool DataSources::bytes() const {
  return std::all_of(files_.begin(), files_.end(),
                     [](const TokenFile& f) { return f.kind() == TokenFile::Kind::bytes; });
}

int64_t DataSources::vocab() const {
  int64_t largest = 0;
  for (const TokenFile& f : files_) largest = std::max(largest, f.vocab());
  return largest;
}

void DataSources::use_vocab(int64_t vocab) {
  for (TokenFile& f : files_)
    if (f.vocab_is_a_guess())
      f = TokenFile(f.path(), {.token_bytes = int(f.token_bytes()), .vocab = vocab, .name = f.name()});
}

void DataSources::check_all() const {
  for (const TokenFile& f : files_) f.check_all();
}

void DataSources::note_contents() {
  for (TokenFile& f : files_) f.note_contents();
}

void DataSources::require_unchanged() const {
  for (const TokenFile& f : files_) f.require_unchanged();
}

}  // namespace cleave::data
