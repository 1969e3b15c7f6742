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

}  // namespace cleave::testing
