#include "core/file_owner.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace cleave {

bool is_trusted_file(const std::string& path) {
  struct stat file {};
  struct stat link {};
  struct stat folder {};
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (::stat(path.c_str(), &file) != 0 || ::lstat(path.c_str(), &link) != 0 ||
      ::stat(parent.empty() ? "." : parent.c_str(), &folder) != 0)
    return false;
  const auto trusted = [&](uid_t owner) {
    return owner == ::geteuid() || owner == 0 || owner == folder.st_uid;
  };
  const bool anyone_may_do_all = (folder.st_mode & S_IWOTH) != 0 && (folder.st_mode & S_ISVTX) == 0;
  return trusted(file.st_uid) && trusted(link.st_uid) && ((file.st_mode & S_IWOTH) == 0 || anyone_may_do_all);
}

}  // namespace cleave
