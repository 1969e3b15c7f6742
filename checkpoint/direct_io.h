// File I/O that bypasses the page cache.
#pragma once
#include <cstdint>

namespace cleave::checkpoint {

inline constexpr int64_t kDirectAlignment = 4096;  // of addresses, offsets and sizes in memory and file

// Makes later reads and writes of an open file bypass the page cache; false if not possible. Supports local
// disks only: other file systems may split a request into parts that arrive in any order, or lose writes.
bool bypass_page_cache(int file);
// Makes later reads and writes use the page cache again; false if not possible.
bool through_page_cache(int file);

}  // namespace cleave::checkpoint
