// Speed of one DiskFile: disk_bench FOLDER TOTAL_MIB TENSOR_MIB BLOCK_KIB DEPTH io_uring|threads
// Prints "write GB/s read GB/s". benchmarks/disk.sh compares it with fio.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "offload/disk_file.h"

using namespace cleave;

int main(int argc, char** argv) try {
  require(argc == 7, Exit::usage, "disk_bench FOLDER TOTAL_MIB TENSOR_MIB BLOCK_KIB DEPTH io_uring|threads");
  const int64_t total = std::atoll(argv[2]) << 20, tensor = std::atoll(argv[3]) << 20;
  const int depth = std::atoi(argv[5]);
  const auto engine = std::string_view(argv[6]) == "threads" ? offload::DiskOptions::Engine::threads
                                                             : offload::DiskOptions::Engine::io_uring;
  Memory memory;
  offload::DiskFile file(memory, argv[1], "benchmark", {{Category::staging, total}},
                         {std::atoll(argv[4]) << 10, depth, depth, engine});
  const Buffer buffer =
      memory.allocate(MemoryKind::host, Category::staging, DType::uint8, {tensor}, "benchmark");
  std::memset(buffer.tensor().raw(), 0x5a, size_t(tensor));
  Stream stream(Stream::Mode::worker);
  auto gb_per_s = [&](auto&& move) {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t at = 0; at + tensor <= total; at += tensor) move(at);
    stream.synchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return double(total / tensor * tensor) / seconds / 1e9;
  };
  gb_per_s([&](int64_t at) { file.write(buffer, at, stream); });  // allocates the extents, as fio does
  const double write = gb_per_s([&](int64_t at) { file.write(buffer, at, stream); });
  const double read = gb_per_s([&](int64_t at) { file.read(buffer, at, stream); });
  std::printf("%.3f %.3f\n", write, read);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}
