// Calls of this process that change files, counted, and one of them made to fail: this program's own open(),
// write(), fsync(), rename(), ... stand before the system library's, and before those of the C++ library.
#pragma once

namespace cleave::testing {

enum class FileFault {
  none,
  error,      // the call fails: no space left
  cut_short,  // a write writes half of its bytes, and all calls fail after that; other calls fail
  kill,       // the process is killed before the call
  kill_late   // and behind it
};

// The `nth` call from now on, counted from 1, on files below `folder`; it fails once, but for cut_short.
void break_file_call(const char* folder, int nth, FileFault fault);
// How many such calls there have been since.
int file_calls();

// Every write below `folder` from now on takes so much longer.
void slow_file_calls(const char* folder, int milliseconds);

// What a mount of an object store does not do. Links, locks, appending and writing at a place are refused by
// all but `local`.
enum class Mount {
  local,
  renames_files,  // but no folders that have something in them
  renames_none    // and files that are there are not written again
};
// From now on, below `folder`; what is refused fails with this errno.
void mount_files(const char* folder, Mount mount, int error);

}  // namespace cleave::testing
