#include <cstring>
#include <memory>

#include "offload/disk_file.h"
#include "plan/bench/machine_rows.h"

namespace cleave::bench {
namespace {

constexpr int64_t kTensor = 24 << 20, kTotal = kTensor * 42;

class Disk {
 public:
  explicit Disk(const std::filesystem::path& folder)
      : file_(memory_, folder, "cleave bench", {{Category::staging, kTotal}}, {}, "--folder"),
        buffer_(memory_.allocate(MemoryKind::host, Category::staging, DType::uint8, {kTensor}, "disk")) {
    std::memset(buffer_.tensor().raw(), 0x5a, size_t(kTensor));
    pass(&offload::DiskFile::write);  // the first pass allocates space in the file system
  }

  // Transfers the whole file once.
  void pass(void (offload::DiskFile::*move)(Tensor, int64_t, Stream&)) {
    for (int64_t at = 0; at + kTensor <= kTotal; at += kTensor) (file_.*move)(buffer_, at, stream_);
    stream_.synchronize();
  }

 private:
  Memory memory_;
  offload::DiskFile file_;
  Buffer buffer_;
  Stream stream_{Stream::Mode::worker};
};

}  // namespace

std::vector<Subject> disk_rows(const std::filesystem::path& folder) {
  const auto disk = std::make_shared<Disk>(folder);
  const auto subject = [&](const char* name, auto move) {
    return Subject{name, [=] {
                     const double seconds = fastest([&] { disk->pass(move); }, 0, /*repeats=*/1);
                     return Visit{.rate = double(kTotal) / 1e9 / seconds, .unit = "GB/s"};
                   }};
  };
  return {subject("disk/write", &offload::DiskFile::write), subject("disk/read", &offload::DiskFile::read)};
}

}  // namespace cleave::bench
