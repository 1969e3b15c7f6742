#include "kernels/choice_file.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <filesystem>
#include <utility>

#include "core/environment.h"
#include "core/user_cache.h"

namespace cleave::kernels {
namespace {

namespace fs = std::filesystem;

constexpr long long kMostBytes = 16 << 20;

std::string checksum_of(std::string_view text) {
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

bool is_usable(int file) {
  struct stat s {};
  return ::fstat(file, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == ::geteuid() &&
         (s.st_mode & (S_IWGRP | S_IWOTH)) == 0 && s.st_size <= kMostBytes;
}

}  // namespace

ChoiceFile::ChoiceFile(const std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path().parent_path(), error);
  ::mkdir(fs::path(path).parent_path().c_str(), S_IRWXU);
  file_ = ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                 S_IRUSR | S_IWUSR);
  if (file_ >= 0 && !is_usable(file_)) ::close(std::exchange(file_, -1));
}

ChoiceFile::~ChoiceFile() {
  if (file_ >= 0) ::close(file_);
}

ChoiceFile::ChoiceFile(ChoiceFile&& other) noexcept
    : file_(std::exchange(other.file_, -1)), read_(other.read_) {}

std::map<std::string, std::string> ChoiceFile::read_new() {
  std::map<std::string, std::string> found;
  struct stat s {};
  if (file_ < 0 || ::fstat(file_, &s) != 0 || s.st_size <= read_ || s.st_size > kMostBytes) return found;
  std::string text(size_t(s.st_size - read_), '\0');
  const ssize_t got = ::pread(file_, text.data(), text.size(), read_);
  if (got <= 0) return found;
  text.resize(text.rfind('\n', size_t(got) - 1) + 1);  // nothing without a whole line
  read_ += (long long)(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at), tab = text.find('\t', at);
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    if (tab >= end) continue;
    const size_t begin = size_t(line.data() - text.data());
    const std::string_view sum = line.substr(0, tab - begin), rest = line.substr(tab - begin + 1);
    const size_t split = rest.find('\t');
    if (split == std::string_view::npos || sum != checksum_of(rest)) continue;
    found.emplace(rest.substr(0, split), rest.substr(split + 1));
  }
  return found;
}

void ChoiceFile::add(const std::string& name, const std::string& choice) {
  if (file_ < 0) return;
  const std::string rest = name + "\t" + choice;
  const std::string line = checksum_of(rest) + "\t" + rest + "\n";
  if (::write(file_, line.data(), line.size()) < 0) ::close(std::exchange(file_, -1));
}

std::string ChoiceFile::default_path() {
  if (environment_value("CLEAVE_CHOICES") == "off") return {};
  const std::string folder = user_cache_folder();
  return folder.empty() ? "" : folder + "/choices";
}

}  // namespace cleave::kernels
