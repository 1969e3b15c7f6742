// Advice for failures to create or write a file.
#pragma once
#include <cerrno>
#include <string_view>

namespace cleave {

// Returns the advice for an errno, as the end of a sentence.
constexpr std::string_view remedy_of_writing(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free space there or choose another place";
    case EACCES:
    case EPERM:
    case ENOENT:
    case ENOTDIR:
      return "choose a place in a folder you may write to";
    default:
      return "choose another place";
  }
}

}  // namespace cleave
