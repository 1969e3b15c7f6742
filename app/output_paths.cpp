#include "app/output_paths.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "core/error.h"
#include "core/write_error.h"
#include "model/presets.h"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;

// Identity of a path's file. A file that does not exist is a name below the nearest existing
// folder.
struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
  std::string below;
  bool operator==(const Identity&) const = default;
};

// Returns nothing for files that cannot be overwritten, such as /dev/null, and on errors.
std::optional<Identity> identity_of(const std::string& path) {
  std::error_code error;
  fs::path there = fs::weakly_canonical(path, error), below;
  if (error) return {};
  struct stat status {};
  while (::stat(there.c_str(), &status) != 0) {
    below = below.empty() ? there.filename() : there.filename() / below;
    if (!there.has_relative_path()) return {};
    there = there.parent_path();
  }
  if (below.empty() && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return {};
  return Identity{status.st_dev, status.st_ino, below.string()};
}

[[noreturn]] void refuse(const std::string& what, const std::string& path, int error) {
  fail(Exit::usage, "{} {}: cannot be opened for writing: {}; {}", what, path, std::strerror(error),
       remedy_of_writing(error));
}

// Opens for writing without changing an existing file; removes a file that it created. Does not
// append, because mounts of object stores do not support it.
void try_file(const std::string& what, const std::string& path) {
  const bool made = ::access(path.c_str(), F_OK) != 0;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd < 0) refuse(what, path, errno);
  ::close(fd);
  if (made) ::unlink(path.c_str());
}

}  // namespace

void OutputPaths::input(const std::string& what, const std::string& path) {
  if (!path.empty()) inputs_.push_back({what, path});
}

void OutputPaths::file(const std::string& what, const std::string& path) {
  if (!path.empty()) outputs_.push_back({what, path});
}

void OutputPaths::folder(const std::string& what, const std::string& path,
                         const std::vector<std::string>& files) {
  if (path.empty()) return;
  outputs_.push_back({what, path, true});
  for (const std::string& name : files)
    outputs_.push_back({what, (fs::path(path) / name).string(), false, true});
}

void OutputPaths::require_distinct() const {
  std::vector<std::pair<const Named*, Identity>> seen;
  for (const Named& in : inputs_)
    if (const auto id = identity_of(in.path)) seen.emplace_back(&in, *id);
  const size_t inputs = seen.size();
  for (const Named& out : outputs_) {
    const auto id = identity_of(out.path);
    if (!id) continue;
    for (size_t i = 0; i < seen.size(); ++i) {
      const Named& other = *seen[i].first;
      if (seen[i].second != *id) continue;
      require(i >= inputs, Exit::usage,
              "{} {}: would overwrite {} {}, which is the same file; give the output another name", out.what,
              out.path, other.what, other.path);
      fail(Exit::usage, "{} {}: is the same as {} {}; give one of them another name", other.what, other.path,
           out.what, out.path);
    }
    seen.emplace_back(&out, *id);
  }
}

void OutputPaths::require_writable() const {
  for (const Named& out : outputs_) {
    if (out.is_of_folder) continue;
    const fs::path folder = out.is_folder ? fs::path(out.path) : fs::path(out.path).parent_path();
    std::error_code error;
    if (!folder.empty()) fs::create_directories(folder, error);
    if (error) refuse(out.what, out.path, error.value());
    try_file(out.what,
             out.is_folder ? (folder / fmt::format(".writable.{}", ::getpid())).string() : out.path);
  }
}

std::string config_file_of_model(const std::string& model) {
  if (model::is_preset(model)) return "";
  std::error_code none;
  if (fs::is_directory(model, none)) return (fs::path(model) / "config.json").string();
  return fs::exists(model, none) ? model : "";
}

}  // namespace cleave::app
