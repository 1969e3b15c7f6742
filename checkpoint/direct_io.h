// Reads and writes of files past the page cache.
#pragma once
#include <cstdint>

namespace cleave::checkpoint {

inline constexpr int64_t kDirectAlignment = 4096;  // of addresses, offsets and sizes in memory and file

// Whether reads and writes of an open file pass by the page cache from now on. Only file systems of local
// disks are asked: others may cut a request into several that arrive in any order, or forget what is written.
bool pass_by_page_cache(int file);
// The contrary. Whether it is so.
bool through_page_cache(int file);

}  // namespace cleave::checkpoint
