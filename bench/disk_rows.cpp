#include <chrono>
#include <cstring>

#include "bench/machine_rows.h"
#include "offload/disk_file.h"

namespace cleave::bench {

std::vector<Row> disk_rows(const std::filesystem::path& folder) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kTensor = 24 << 20, kTotal = kTensor * 42;
  Memory memory;
  offload::DiskFile file(memory, folder, "cleave bench", {{Category::staging, kTotal}}, {}, "--folder");
  const Buffer buffer = memory.allocate(MemoryKind::host, Category::staging, DType::uint8, {kTensor}, "disk");
  std::memset(buffer.tensor().raw(), 0x5a, size_t(kTensor));
  Stream stream(Stream::Mode::worker);
  const auto rate = [&](const auto& move) {
    std::vector<double> seconds;
    for (int repeat = 0; repeat <= 3; ++repeat) {  // the first time the file system finds room
      const auto begin = Clock::now();
      for (int64_t at = 0; at + kTensor <= kTotal; at += kTensor) move(at);
      stream.synchronize();
      if (repeat > 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return rate_of(std::move(seconds), double(kTotal) / 1e9);
  };
  const Rate write = rate([&](int64_t at) { file.write(buffer, at, stream); });
  const Rate read = rate([&](int64_t at) { file.read(buffer, at, stream); });
  return {{.name = "disk/write", .unit = "GB/s", .rate = write},
          {.name = "disk/read", .unit = "GB/s", .rate = read}};
}

}  // namespace cleave::bench
