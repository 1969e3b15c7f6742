// Reads and writes of files past the page cache.
#pragma once
#include <cstdint>

namespace cleave::checkpoint {

inline constexpr int64_t kDirectAlignment = 4096;  // of addresses, offsets and sizes in memory and file

// Makes reads and writes of an open file bypass the page cache from now on; false where they cannot. Only
// file systems of local disks are asked: others may cut a request into several that arrive in any order, or
// forget what is written.
bool bypass_page_cache(int file);
// The contrary. Whether it is so.
bool through_page_cache(int file);

}  // namespace cleave::checkpoint
