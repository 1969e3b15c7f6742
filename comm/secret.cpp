#include "comm/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "comm/socket.h"
#include "core/error.h"

namespace cleave::comm {
namespace {

constexpr size_t kDigits = 32;
constexpr const char* kParents[] = {"/tmp", "/var/tmp"};  // the first that can be written

// Of this user; one that somebody else made under the name, or that others can look into, is none.
std::string own_folder(const char* parent) {
  const std::string folder = fmt::format("{}/cleave-{}", parent, geteuid());
  struct stat s {};
  const bool own =
      lstat(folder.c_str(), &s) == 0 && S_ISDIR(s.st_mode) && s.st_uid == geteuid() && (s.st_mode & 077) == 0;
  return own ? folder : std::string();
}

// Containers may share the folder; a port is of a network.
std::string file_of(const std::string& folder, int port) {
  struct stat network {};
  stat("/proc/self/ns/net", &network);
  return fmt::format("{}/port-{}-{}", folder, network.st_ino, port);
}

std::string read_secret(const std::string& path) {
  const Socket file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::string value(kDigits, 0);
  return file && read(file.fd(), value.data(), kDigits) == ssize_t(kDigits) ? value : std::string();
}

bool write_secret(const std::string& path, const std::string& value) {
  const std::string made = fmt::format("{}.{}", path, getpid());
  const Socket file(open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool written = file && write(file.fd(), value.data(), value.size()) == ssize_t(value.size()) &&
                       std::rename(made.c_str(), path.c_str()) == 0;
  if (!written) std::remove(made.c_str());
  return written;
}

}  // namespace

std::string random_secret() {
  uint64_t number[2] = {};
  require(getrandom(number, sizeof(number), 0) == ssize_t(sizeof(number)), Exit::internal,
          "getrandom failed");
  return fmt::format("{:016x}{:016x}", number[0], number[1]);
}

bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() != b.size();
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) difference |= unsigned(a[i] ^ b[i]);
  return difference == 0;
}

HostSecret HostSecret::make(int port) {
  HostSecret made;
  const std::string value = random_secret();
  for (const char* parent : kParents) {
    mkdir(fmt::format("{}/cleave-{}", parent, geteuid()).c_str(), 0700);
    const std::string folder = own_folder(parent);
    if (folder.empty() || !write_secret(file_of(folder, port), value)) continue;
    made.path_ = file_of(folder, port), made.value_ = value;
    break;
  }
  return made;
}

std::string HostSecret::find(int port) {
  for (const char* parent : kParents) {
    const std::string folder = own_folder(parent);
    const std::string value = folder.empty() ? "" : read_secret(file_of(folder, port));
    if (!value.empty()) return value;
  }
  return {};
}

HostSecret::HostSecret(HostSecret&& other) noexcept
    : path_(std::exchange(other.path_, {})), value_(std::exchange(other.value_, {})) {}

HostSecret& HostSecret::operator=(HostSecret&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(value_, other.value_);
  return *this;
}

HostSecret::~HostSecret() {
  if (!path_.empty() && read_secret(path_) == value_) std::remove(path_.c_str());
}

}  // namespace cleave::comm
