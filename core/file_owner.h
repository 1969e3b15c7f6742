// Checks which users could have written a file before it is read.
#pragma once
#include <string>

namespace cleave {

// Whether only this user, root and the owner of its folder could have written the file. Files in folders that
// everyone may write without restriction pass, because such mounts have no owners. false if there is no file.
bool is_trusted_file(const std::string& path);

}  // namespace cleave
