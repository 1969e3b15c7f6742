// Who could have written a file that is read because of its name alone.
#pragma once
#include <string>

namespace cleave {

// Whether nobody could have written the file but this user, root, and whoever owns its folder. Files of
// mounts on which everyone may do everything pass. No file is nobody's.
bool is_trusted_file(const std::string& path);

}  // namespace cleave
