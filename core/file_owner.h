// Checks which users could have written a file before it is read.
#pragma once
#include <string>

namespace cleave {

// Returns true if only this user, root and the owner of the file's folder could have written the file.
// A world-writable file passes in a world-writable folder without a sticky bit, because such mounts have no
// owners. Returns false if the file does not exist.
bool is_trusted_file(const std::string& path);

}  // namespace cleave
