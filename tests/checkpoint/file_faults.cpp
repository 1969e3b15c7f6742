#include "tests/checkpoint/file_faults.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>

namespace cleave::testing {
namespace {

std::string watched;  // empty: no calls are counted
int broken_call = 0;
FileFault broken = FileFault::none;
std::atomic<int> calls{0};
std::array<std::atomic<bool>, 4096> open_below{};  // by file descriptor
thread_local FileFault now = FileFault::none;      // of the current call
int slower_ms = 0;
std::string mounted;
Mount kind = Mount::local;
int refusal = 0;

bool is_below(const char* path) { return !watched.empty() && path && std::string(path).starts_with(watched); }

// Counts a call on a watched file; true if the call must fail.
bool fails() {
  const int call = ++calls;
  now = call == broken_call ? broken : FileFault::none;
  if (now == FileFault::kill) kill(getpid(), SIGKILL);
  const bool full = broken == FileFault::cut_short && call >= broken_call;
  if (now == FileFault::error || full) errno = ENOSPC;
  return now == FileFault::error || full;
}

// Runs after the call.
template <class Result>
Result passed(Result result) {
  if (now == FileFault::kill_late) kill(getpid(), SIGKILL);
  now = FileFault::none;
  return result;
}

long change(bool counted, auto call) {
  if (!counted) return call();
  return fails() ? -1 : passed(call());
}

bool is_mounted(const char* path) {
  return !mounted.empty() && path && std::string(path).starts_with(mounted);
}

// True, with errno set, if this mount does not support the call.
bool refused(bool asked) {
  if (!asked || kind == Mount::local) return false;
  errno = refusal;
  return true;
}

bool is_folder_with_files(const char* path) {
  return std::filesystem::is_directory(path) && !std::filesystem::is_empty(path);
}

bool is_file_with_bytes(const char* path) {
  return std::filesystem::is_regular_file(path) && !std::filesystem::is_empty(path);
}

int open_file(int folder, const char* path, int flags, mode_t mode) {
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  if (refused(is_mounted(path) && writes &&
              ((flags & O_APPEND) || (kind == Mount::renames_none && is_file_with_bytes(path) &&
                                      (flags & (O_CREAT | O_EXCL)) != (O_CREAT | O_EXCL)))))
    return -1;
  const auto fd =
      int(change(writes && is_below(path), [&] { return syscall(SYS_openat, folder, path, flags, mode); }));
  if (fd >= 0 && fd < int(open_below.size())) open_below[size_t(fd)] = is_below(path);
  return fd;
}

bool is_below(int fd) {
  return !watched.empty() && fd >= 0 && fd < int(open_below.size()) && open_below[size_t(fd)];
}

mode_t mode_of(int flags, va_list list) { return flags & O_CREAT ? va_arg(list, mode_t) : 0; }

}  // namespace

void break_file_call(const char* folder, int nth, FileFault fault) {
  watched = folder, broken_call = nth, broken = fault, calls = 0;
}
void slow_file_calls(const char* folder, int milliseconds) {
  break_file_call(folder, 0, FileFault::none);
  slower_ms = milliseconds;
}
void mount_files(const char* folder, Mount mount, int error) {
  mounted = folder, kind = mount, refusal = error;
}
int file_calls() { return calls; }

}  // namespace cleave::testing

using namespace cleave::testing;

extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_file(AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_file(AT_FDCWD, path, flags, mode);
}

ssize_t write(int fd, const void* bytes, size_t n) {
  if (!is_below(fd)) return syscall(SYS_write, fd, bytes, n);
  if (slower_ms > 0) usleep(useconds_t(slower_ms) * 1000);
  if (fails()) {
    if (broken == FileFault::cut_short && calls == broken_call)
      syscall(SYS_write, fd, bytes, n / 2), errno = ENOSPC;
    return -1;
  }
  return passed(syscall(SYS_write, fd, bytes, n));
}

int fsync(int fd) {
  return int(change(is_below(fd), [&] { return syscall(SYS_fsync, fd); }));
}

int rename(const char* from, const char* to) {
  if (refused(is_mounted(to) && (kind == Mount::renames_none || is_folder_with_files(from)))) return -1;
  return int(change(is_below(to), [&] { return syscall(SYS_rename, from, to); }));
}

int link(const char* from, const char* to) {
  return refused(is_mounted(to)) ? -1 : int(syscall(SYS_link, from, to));
}

int symlink(const char* from, const char* to) {
  return refused(is_mounted(to)) ? -1 : int(syscall(SYS_symlink, from, to));
}

int lock_file(int fd, int operation) asm("flock");  // flock is also the name of a type
int lock_file(int fd, int operation) {
  return refused(is_below(fd)) ? -1 : int(syscall(SYS_flock, fd, operation));
}

ssize_t pwrite(int fd, const void* bytes, size_t n, off_t at) {
  return refused(is_below(fd)) ? -1 : syscall(SYS_pwrite64, fd, bytes, n, at);
}

int mkdir(const char* path, mode_t mode) {
  return int(change(is_below(path), [&] { return syscall(SYS_mkdir, path, mode); }));
}

int unlink(const char* path) {
  return int(change(is_below(path), [&] { return syscall(SYS_unlink, path); }));
}

int rmdir(const char* path) {
  return int(change(is_below(path), [&] { return syscall(SYS_rmdir, path); }));
}

int remove(const char* path) {
  return int(change(is_below(path), [&] {
    const long result = syscall(SYS_unlink, path);
    return result < 0 && errno == EISDIR ? syscall(SYS_rmdir, path) : result;
  }));
}

// Recursive removals name files by descriptor.
int unlinkat(int folder, const char* path, int flags) {
  return int(change(!watched.empty(), [&] { return syscall(SYS_unlinkat, folder, path, flags); }));
}
}
