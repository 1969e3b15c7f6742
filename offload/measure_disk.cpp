#include <chrono>
#include <cstring>
#include <memory>

#include "offload/disk_file.h"

namespace cleave::offload {
namespace {

constexpr int64_t kMost = int64_t{64} << 20;
constexpr double kSeconds = 0.15;  // per direction

// Repeats the transfer and returns bytes per second.
double rate(const Tensor& tensor, Stream& stream, const std::function<void()>& move) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  double seconds = 0, bytes = 0;
  do {
    move();
    stream.synchronize();
    bytes += double(tensor.bytes());
    seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  } while (seconds < kSeconds && bytes < 4 * double(tensor.bytes()));
  return bytes / seconds;
}

}  // namespace

DiskRates measure_disk(const std::filesystem::path& folder, int64_t bytes, const DiskOptions& options,
                       const std::string& key) {
  Memory memory;  // separate: freed before training starts
  const int64_t n = std::min(kMost, round_up(std::max<int64_t>(bytes, 1), DiskFile::kAlignment));
  DiskFile file(memory, folder, "a measurement", {{Category::staging, n}}, options, key);
  const Buffer out = memory.allocate(MemoryKind::host, Category::staging, DType::uint8, {n}, "a measurement");
  const Buffer back =
      memory.allocate(MemoryKind::host, Category::staging, DType::uint8, {n}, "a measurement");
  uint64_t word = 0x9e3779b97f4a7c15;
  for (int64_t i = 0; i + 8 <= n; i += 8, word = word * 6364136223846793005 + 1442695040888963407)
    std::memcpy(static_cast<std::byte*>(out.tensor().raw()) + i, &word, 8);
  Stream stream;
  DiskRates rates{0, 0, file.engine()};
  rates.write = rate(out, stream, [&] { file.write(out, 0, stream); });
  rates.read = rate(back, stream, [&] { file.read(back, 0, stream); });
  require(std::memcmp(out.tensor().raw(), back.tensor().raw(), size_t(n)) == 0, Exit::training,
          "{}: data read from {} differs from the data written; the disk or file system is damaged, choose "
          "another folder",
          key, folder.string());
  return rates;
}

}  // namespace cleave::offload
