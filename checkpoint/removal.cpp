#include "checkpoint/removal.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/error.h"
#include "core/input_file.h"
#include "core/json.h"
#include "core/printable.h"

namespace cleave::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kManifest = "manifest.json";

// Removes files of a folder through its descriptor, so that a folder or link that takes its name meanwhile is
// safe.
class OpenFolder {
 public:
  explicit OpenFolder(const fs::path& path)
      : path_(path),
        stream_(nullptr, closedir),
        fd_(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {
    if (fd_ >= 0) stream_.reset(fdopendir(fd_));
    if (!stream_) fail_at("cannot open folder", path_);
  }

  std::vector<std::string> own_files(OwnName own) const { return names(own, true); }
  std::vector<std::string> others(OwnName own) const { return names(own, false); }
  void remove(const std::string& name) const {
    if (unlinkat(fd_, name.c_str(), 0) != 0 && errno != ENOENT) fail_at("cannot remove", path_ / name);
  }

 private:
  [[noreturn]] static void fail_at(const char* what, const fs::path& path) {
    throw fs::filesystem_error(what, path, std::error_code(errno, std::generic_category()));
  }
  std::vector<std::string> names(OwnName own, bool wanted) const {
    std::vector<std::string> found;
    rewinddir(stream_.get());
    while (const dirent* entry = readdir(stream_.get())) {
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      const bool is_folder = fs::is_directory(fs::symlink_status(path_ / name));
      if ((own(name) && !is_folder) == wanted) found.emplace_back(name);
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  fs::path path_;
  std::unique_ptr<DIR, int (*)(DIR*)> stream_;
  int fd_;
};

// True if the text is `begin`, at least five digits, and one of `ends`.
bool is_numbered(std::string_view name, std::string_view begin,
                 std::initializer_list<std::string_view> ends) {
  if (!name.starts_with(begin)) return false;
  name.remove_prefix(begin.size());
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  return digits >= 5 && std::count(ends.begin(), ends.end(), name.substr(digits)) > 0;
}

bool is_real_folder(const fs::path& path) { return fs::is_directory(fs::symlink_status(path)); }

}  // namespace

bool is_checkpoint_file(std::string_view name) {
  return name == kManifest || name == "manifest.json.tmp" || name == "file" ||
         is_numbered(name, "shard-", {".safetensors", ".json"});
}

bool is_weights_file(std::string_view name) {
  const size_t of = name.find("-of-");
  return name == "model.safetensors" || name == "model.safetensors.index.json" ||
         (of != name.npos && is_numbered(name.substr(0, of), "model-", {""}) &&
          is_numbered(name.substr(of), "-of-", {".safetensors"}));
}

std::vector<std::string> others_in(const fs::path& folder, OwnName own) {
  return is_real_folder(folder) ? OpenFolder(folder).others(own) : std::vector<std::string>();
}

bool remove_own(const fs::path& folder, OwnName own) {
  const fs::file_status status = fs::symlink_status(folder);
  if (fs::is_symlink(status)) return fs::remove(folder), true;
  if (!fs::is_directory(status)) return !fs::exists(status);
  {
    const OpenFolder open(folder);
    std::vector<std::string> files = open.own_files(own);
    std::stable_partition(files.begin(), files.end(), [](const std::string& f) { return f == kManifest; });
    for (const std::string& file : files) open.remove(file);
    if (!open.others(own).empty()) return false;
  }
  fs::remove(folder);  // fails if the folder was filled meanwhile
  return true;
}

void discard_own(const fs::path& folder, OwnName own) noexcept try {
  remove_own(folder, own);
} catch (const std::exception&) {
}

void require_removed(const fs::path& folder, OwnName own) {
  const std::vector<std::string> others = others_in(folder, own);
  require(others.empty() && remove_own(folder, own), Exit::checkpoint,
          "{}: is in the way and was not written by cleave{}; move it to another place", folder.string(),
          others.empty() ? "" : fmt::format(" (it contains {})", in_quotes(others.front())));
}

bool is_checkpoint(const fs::path& folder) {
  if (fs::is_regular_file(folder / "manifest.json")) {
    const nlohmann::json manifest =
        json_or_nothing(InputFile((folder / "manifest.json").string(), Exit::checkpoint).text());
    if (manifest.is_object() && manifest.value("format", nlohmann::json()) == "cleave") return true;
  }
  // Files of a killed save or a failed disk also count.
  const auto none = [](std::string_view) { return false; };
  return others_in(folder, is_checkpoint_file).empty() &&
         others_in(folder, none) != std::vector<std::string>{"manifest.json"};
}

void require_replaceable(const fs::path& folder) {
  const fs::file_status status = fs::symlink_status(folder);
  if (!fs::exists(status) || fs::is_symlink(status)) return;
  require(fs::is_directory(status) && is_checkpoint(folder), Exit::checkpoint,
          "{}: exists and is not a checkpoint; choose another tag, or move it to another place",
          folder.string());
}

}  // namespace cleave::checkpoint
