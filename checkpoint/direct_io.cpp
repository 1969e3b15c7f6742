#include "checkpoint/direct_io.h"

#include <fcntl.h>
#include <sys/statfs.h>

#include <algorithm>
#include <iterator>

namespace cleave::checkpoint {
namespace {

constexpr uint32_t kExt = 0xEF53, kXfs = 0x58465342, kBtrfs = 0x9123683E, kOverlay = 0x794C7630;

}  // namespace

bool bypass_page_cache(int file) {
  constexpr uint32_t kLocal[] = {kExt, kXfs, kBtrfs, kOverlay};
  struct statfs system {};
  if (fstatfs(file, &system) != 0 ||
      std::find(std::begin(kLocal), std::end(kLocal), uint32_t(system.f_type)) == std::end(kLocal))
    return false;
  const int flags = fcntl(file, F_GETFL);
  return flags >= 0 && fcntl(file, F_SETFL, flags | O_DIRECT) == 0;
}

bool through_page_cache(int file) {
  const int flags = fcntl(file, F_GETFL);
  return flags >= 0 && fcntl(file, F_SETFL, flags & ~O_DIRECT) == 0;
}

}  // namespace cleave::checkpoint
