// Emulates the limits of Azure ML mounts, preloaded with LD_PRELOAD. Folders in EMULATED_OUTPUTS
// (separated by ':') reject append, overwriting existing files, locks, links and renames of
// folders; folders in EMULATED_INPUTS reject all writes.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>

namespace {
namespace fs = std::filesystem;

bool is_below(const char* variable, const std::string& path) {
  const char* value = getenv(variable);
  std::istringstream folders(value ? value : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (!folder.empty() && (path == folder || path.starts_with(folder + "/"))) return true;
  return false;
}

std::string path_of(int fd) {
  char text[4096] = {};
  const ssize_t n = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), text, sizeof(text) - 1);
  return n > 0 ? std::string(text, size_t(n)) : "";
}

std::string absolute(int folder, const char* path) {
  const fs::path asked = path ? path : "";
  if (asked.is_absolute()) return asked.lexically_normal();
  std::error_code error;
  return ((folder == AT_FDCWD ? fs::current_path(error) : fs::path(path_of(folder))) / asked)
      .lexically_normal();
}

bool is_output(const std::string& path) { return is_below("EMULATED_OUTPUTS", path); }
bool is_input(const std::string& path) { return is_below("EMULATED_INPUTS", path); }

bool refused(bool is, int error) {
  if (is) errno = error;
  return is;
}

bool refused_change(const std::string& path) { return refused(is_input(path), EROFS); }

bool refused_open(const std::string& path, int flags) {
  const bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_TRUNC | O_CREAT));
  if (!writes) return false;
  if (refused_change(path)) return true;
  struct stat status {};
  const bool there = stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0;
  const bool into = there && (flags & O_ACCMODE) != O_RDONLY && !(flags & (O_TRUNC | O_EXCL));
  return is_output(path) && refused((flags & O_APPEND) || into, EOPNOTSUPP);
}

bool refused_rename(const std::string& from, const std::string& to) {
  std::error_code error;
  return refused_change(from) || refused_change(to) ||
         refused((is_output(from) || is_output(to)) && fs::is_directory(from, error), EPERM);
}

bool refused_link(const std::string& at) { return refused_change(at) || refused(is_output(at), EPERM); }

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

mode_t mode_of(int flags, va_list list) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; }

FILE* open_stream(const char* name, const char* path, const char* mode) {
  const std::string asked = mode;
  const int flags = asked[0] == 'r' ? (asked.find('+') == asked.npos ? O_RDONLY : O_RDWR)
                                    : O_WRONLY | O_CREAT | (asked[0] == 'a' ? O_APPEND : O_TRUNC);
  if (refused_open(absolute(AT_FDCWD, path), flags)) return nullptr;
  return next<FILE*(const char*, const char*)>(name)(path, mode);
}

}  // namespace

#define OPEN(name)                                                     \
  int name(const char* path, int flags, ...) {                         \
    va_list list;                                                      \
    va_start(list, flags);                                             \
    const mode_t mode = mode_of(flags, list);                          \
    va_end(list);                                                      \
    if (refused_open(absolute(AT_FDCWD, path), flags)) return -1;      \
    return next<int(const char*, int, ...)>(#name)(path, flags, mode); \
  }
#define OPENAT(name)                                                                \
  int name(int folder, const char* path, int flags, ...) {                          \
    va_list list;                                                                   \
    va_start(list, flags);                                                          \
    const mode_t mode = mode_of(flags, list);                                       \
    va_end(list);                                                                   \
    if (refused_open(absolute(folder, path), flags)) return -1;                     \
    return next<int(int, const char*, int, ...)>(#name)(folder, path, flags, mode); \
  }

extern "C" {

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

FILE* fopen(const char* path, const char* mode) { return open_stream("fopen", path, mode); }
FILE* fopen64(const char* path, const char* mode) { return open_stream("fopen64", path, mode); }

int rename(const char* from, const char* to) noexcept {
  if (refused_rename(absolute(AT_FDCWD, from), absolute(AT_FDCWD, to))) return -1;
  return next<int(const char*, const char*)>("rename")(from, to);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  if (refused_rename(absolute(from_folder, from), absolute(to_folder, to))) return -1;
  return next<int(int, const char*, int, const char*)>("renameat")(from_folder, from, to_folder, to);
}

int link(const char* from, const char* to) noexcept {
  return refused_link(absolute(AT_FDCWD, to)) ? -1 : next<int(const char*, const char*)>("link")(from, to);
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  if (refused_link(absolute(to_folder, to))) return -1;
  return next<int(int, const char*, int, const char*, int)>("linkat")(from_folder, from, to_folder, to,
                                                                      flags);
}

int symlink(const char* from, const char* to) noexcept {
  return refused_link(absolute(AT_FDCWD, to)) ? -1 : next<int(const char*, const char*)>("symlink")(from, to);
}

int lock_file(int fd, int operation) asm("flock");  // flock is also the name of a type
int lock_file(int fd, int operation) {
  if (refused(is_output(path_of(fd)), EOPNOTSUPP)) return -1;
  return next<int(int, int)>("flock")(fd, operation);
}

int fcntl64(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  void* argument = va_arg(list, void*);
  va_end(list);
  const bool locks =
      command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
  if (refused(locks && is_output(path_of(fd)), EOPNOTSUPP)) return -1;
  return next<int(int, int, ...)>("fcntl64")(fd, command, argument);
}

ssize_t pwrite(int fd, const void* bytes, size_t n, off_t at) {
  if (refused(is_output(path_of(fd)), EOPNOTSUPP)) return -1;
  return next<ssize_t(int, const void*, size_t, off_t)>("pwrite")(fd, bytes, n, at);
}

int mkdir(const char* path, mode_t mode) noexcept {
  return refused_change(absolute(AT_FDCWD, path)) ? -1 : next<int(const char*, mode_t)>("mkdir")(path, mode);
}

int unlink(const char* path) noexcept {
  return refused_change(absolute(AT_FDCWD, path)) ? -1 : next<int(const char*)>("unlink")(path);
}

int remove(const char* path) noexcept {
  return refused_change(absolute(AT_FDCWD, path)) ? -1 : next<int(const char*)>("remove")(path);
}
}
