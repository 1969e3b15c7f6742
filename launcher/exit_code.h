// What a main() does around everything else: errors become words on stderr and the exit codes of
// core/error.h.
#pragma once
#include <functional>
#include <string_view>

namespace cleave::launcher {

// Runs the body of a program once and returns its exit code: the body's, or that of what it throws, which
// goes to stderr as "error: ...", with this rank before it where a launcher started several. An error without
// words is said by another rank. `if_a_defect` follows what is no mistake of the user's. A file that reaches
// the limit of its size (ulimit -f) is an error of its write, and a thread that a library cannot start is one
// of memory, and so is memory that a thread asks for and does not get. A standard stream that is closed
// becomes /dev/null.
int exit_code_of(const std::function<int()>& body,
                 std::string_view if_a_defect = "internal error of this program or of cleave");

}  // namespace cleave::launcher
