// Error handling of main(): prints errors on stderr and returns the exit codes of core/error.h.
#pragma once
#include <functional>
#include <string_view>

namespace cleave::launcher {

// Runs the body of a program once and returns its exit code, or that of its exception. Exceptions are printed
// on stderr as "error: ...", with this rank in front if a launcher started several. An error with an empty
// message is printed by another rank. `if_a_defect` is appended to errors that are not the user's. A write
// beyond the file size limit (ulimit -f) is an error of that write. A thread that a library cannot start, or
// a failed allocation in a thread, ends the process with Exit::memory. Closed standard streams are replaced
// by /dev/null.
int exit_code_of(const std::function<int()>& body,
                 std::string_view if_a_defect = "internal error of this program or of cleave");

}  // namespace cleave::launcher
