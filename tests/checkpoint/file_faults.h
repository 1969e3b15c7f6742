// Counts this process's calls that change files, and makes one of them fail: this program's open(), write(),
// fsync(), rename(), ... take precedence over those of the system library and the C++ library.
#pragma once

namespace cleave::testing {

enum class FileFault {
  none,
  error,      // the call fails: no space left
  cut_short,  // a write writes half of its bytes, and all calls fail after that; other calls fail
  kill,       // the process is killed before the call
  kill_late   // the process is killed after the call
};

// Breaks the `nth` call from now on, counted from 1, on files below `folder`. It fails once, except for
// cut_short.
void break_file_call(const char* folder, int nth, FileFault fault);
// Number of such calls since then.
int file_calls();

// Delays every write below `folder` from now on.
void slow_file_calls(const char* folder, int milliseconds);

// Operations that mounts of object stores do not support. Only `local` supports links, locks, appending and
// writing at an offset.
enum class Mount {
  local,
  renames_files,  // but no folders with entries
  renames_none    // and does not overwrite existing files
};
// Applies below `folder` from now on; unsupported calls fail with this errno.
void mount_files(const char* folder, Mount mount, int error);

}  // namespace cleave::testing
