#include "offload/disk_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "core/units.h"
#include "core/warnings.h"
#include "offload/disk_queue.h"

namespace cleave::offload {
namespace {

constexpr int64_t kAlign = DiskFile::kAlignment;
using Aligned = std::unique_ptr<std::byte, decltype(&std::free)>;

Aligned aligned(int64_t bytes) {
  Aligned p(static_cast<std::byte*>(std::aligned_alloc(size_t(kAlign), size_t(bytes))), &std::free);
  require(p != nullptr, Exit::memory, "host memory: allocation of {} for unaligned disk blocks failed",
          format_bytes(bytes));
  return p;
}

void say_once(std::once_flag& flag, const std::string& text) {
  std::call_once(flag, [&] { warn("{}", text); });
}

// Opens an unnamed file. On file systems without O_TMPFILE, creates and unlinks a file.
int open_unnamed(const std::filesystem::path& folder, int flags) {
  const int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  std::string pattern = (folder / ".cleave-XXXXXX").string();
  const int named = mkostemp(pattern.data(), O_CLOEXEC | flags);
  if (named >= 0) unlink(pattern.c_str());
  return named;
}

}  // namespace

struct DiskFile::Handle {
  int file = -1;
  bool direct = true;
  ~Handle() {
    if (file >= 0) close(file);
  }
  // Uses O_DIRECT if possible. Some file systems reject it at the open, others at the first read.
  void open_in(const std::filesystem::path& folder, const std::string& key) {
    static std::once_flag said;
    file = open_unnamed(folder, O_DIRECT);
    if (file < 0 && errno == EINVAL) file = open_unnamed(folder, 0), direct = false;
    require(file >= 0, Exit::usage, "{}: cannot create a file in {}: {}; choose a writable folder", key,
            folder.string(), std::strerror(errno));
    if (direct && (ftruncate(file, kAlign) != 0 || pread(file, aligned(kAlign).get(), kAlign, 0) != kAlign))
      fcntl(file, F_SETFL, fcntl(file, F_GETFL) & ~O_DIRECT), direct = false;
    if (!direct)
      say_once(said, fmt::format("{}: the file system has no O_DIRECT, so offload uses the page cache: "
                                 "slower, and with memory outside the plan",
                                 folder.string()));
  }
  // Reserves now, so that a full disk is detected before training.
  void reserve(int64_t bytes, const std::filesystem::path& folder, const std::string& name,
               const std::string& key) {
    rlimit most{};
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY)
      require(uint64_t(bytes) <= most.rlim_cur, Exit::memory,
              "{}: {} in {} needs a file of {} ({} bytes), and files may have {} bytes here; raise ulimit -f",
              key, name, folder.string(), format_bytes(bytes), bytes, most.rlim_cur);
    const DiskSpace space = disk_space(folder, key);
    int error = space.available < bytes
                    ? ENOSPC
                    : 0;  // checked first, because a failing fallocate fills the disk for other users
    if (error == 0 && fallocate(file, 0, 0, bytes) != 0) error = errno;
    if (error == EOPNOTSUPP) error = ftruncate(file, bytes) == 0 ? 0 : errno;
    require(error == 0, Exit::memory,
            "{}: {} in {} needs {} ({} bytes), {} ({} bytes) are available: {}; free space there, or point "
            "{} to a "
            "larger disk",
            key, name, folder.string(), format_bytes(bytes), bytes, format_bytes(space.available),
            space.available, std::strerror(error), key);
  }
};

// One direction of transfer: a queue with one run at a time.
struct DiskFile::Channel {
  explicit Channel(const DiskOptions& o) {
    static std::once_flag said;
    if (o.engine != DiskOptions::Engine::threads) queue = make_uring_queue(o.queue_depth, refusal);
    if (queue) return;
    CHECK(o.engine == DiskOptions::Engine::any || o.engine == DiskOptions::Engine::threads, "io_uring: {}",
          refusal);
    if (!refusal.empty())
      say_once(said, fmt::format("no io_uring here ({}); {} threads read and write the disk instead", refusal,
                                 o.threads));
    queue = make_thread_queue(o.threads);
    threads = true;
  }
  std::mutex mutex;
  std::unique_ptr<DiskQueue> queue;
  std::string refusal;
  bool threads = false;
};

DiskFile::DiskFile(Memory& memory, const std::filesystem::path& folder, std::string name,
                   const std::vector<std::pair<Category, int64_t>>& bytes, const DiskOptions& options,
                   std::string key)
    : name_(fmt::format("{} in {}", name, folder.string())), key_(std::move(key)), options_(options) {
  CHECK(options.block_bytes > 0 && options.queue_depth > 0 && options.threads > 0, "disk options of {}",
        name);
  options_.block_bytes = std::min(round_up(options.block_bytes, kAlign), int64_t{1} << 30);
  for (const auto& [category, n] : bytes) {
    bytes_ += n;
    counted_.push_back(memory.allocate(MemoryKind::disk, category, DType::uint8, {n}, name));
  }
  if (memory.dry()) return;
  file_ = std::make_unique<Handle>();
  file_->open_in(folder, key_);
  file_->reserve(std::max(kAlign, round_up(bytes_, kAlign)), folder, name, key_);
  reads_ = std::make_unique<Channel>(options_), writes_ = std::make_unique<Channel>(options_);
}

DiskFile::~DiskFile() = default;

std::string DiskFile::engine() const {
  if (!file_) return "";
  const int flying = reads_->threads ? options_.threads : options_.queue_depth;
  return fmt::format("{}, {} x {} in flight, {}", reads_->threads ? "threads" : "io_uring", flying,
                     format_bytes(options_.block_bytes), file_->direct ? "O_DIRECT" : "page cache");
}

void DiskFile::read(Tensor to, int64_t offset, Stream& stream) {
  CHECK(0 <= offset && offset + to.bytes() <= bytes_, "{}: read of {} bytes at {} of {}", name_, to.bytes(),
        offset, bytes_);
  CHECK(!stream.on_cuda(), "{}: a GPU's stream cannot read files", name_);
  if (file_)
    stream.enqueue([=, this] { move(false, static_cast<std::byte*>(to.raw()), to.bytes(), offset); });
}

void DiskFile::write(Tensor from, int64_t offset, Stream& stream) {
  CHECK(0 <= offset && offset + from.bytes() <= bytes_, "{}: write of {} bytes at {} of {}", name_,
        from.bytes(), offset, bytes_);
  CHECK(!stream.on_cuda(), "{}: a GPU's stream cannot write files", name_);
  if (file_)
    stream.enqueue([=, this] { move(true, static_cast<std::byte*>(from.raw()), from.bytes(), offset); });
}

void DiskFile::move(bool write, std::byte* data, int64_t bytes, int64_t offset) {
  Channel& channel = write ? *writes_ : *reads_;
  std::lock_guard lock(channel.mutex);
  // Ranges aligned in the file and in memory are transferred directly, in blocks.
  auto direct = [&](bool writes, std::byte* at, int64_t begin, int64_t n) {
    std::vector<DiskRequest> requests;
    for (int64_t done = 0; done < n; done += options_.block_bytes)
      requests.push_back({at + done, begin + done, std::min(options_.block_bytes, n - done)});
    const auto fault = channel.queue->run(file_->file, writes, requests);
    if (!fault) return;
    const bool full = fault->error == ENOSPC || fault->error == EDQUOT || fault->error == EFBIG;
    fail(full ? Exit::memory : Exit::training,
         "{}: {} at byte {}: incomplete (expected {} bytes, {} {}): {}; {}", name_,
         writes ? "writing" : "reading", fault->request.offset, fault->request.bytes, fault->got,
         writes ? "written" : "read",
         fault->error ? std::strerror(fault->error) : "the file is shorter than it was made",
         full ? fmt::format("free space there, or point {} to a larger disk", key_)
              : fmt::format(
                    "see the kernel's log (dmesg) for this disk, or point {} to another; training resumes "
                    "from the last checkpoint",
                    key_));
  };
  // Other ranges go through aligned memory; writes preserve the bytes next to their edges.
  auto bounced = [&](std::byte* at, int64_t begin, int64_t n) {
    if (n == 0) return;
    const int64_t from = begin / kAlign * kAlign, to = round_up(begin + n, kAlign);
    const Aligned block = aligned(to - from);
    if (!write || from < begin) direct(false, block.get(), from, write ? kAlign : to - from);
    if (write && begin + n < to && (to - from > kAlign || from == begin))
      direct(false, block.get() + (to - from - kAlign), to - kAlign, kAlign);
    if (write) {
      std::memcpy(block.get() + (begin - from), at, size_t(n));
      direct(true, block.get(), from, to - from);
    } else {
      std::memcpy(at, block.get() + (begin - from), size_t(n));
    }
  };
  const int64_t end = offset + bytes;
  if ((reinterpret_cast<intptr_t>(data) - offset) % kAlign == 0) {
    const int64_t head = std::min(end, round_up(offset, kAlign)),
                  tail = std::max(head, end / kAlign * kAlign);
    bounced(data, offset, head - offset);
    direct(write, data + (head - offset), head, tail - head);
    bounced(data + (tail - offset), tail, end - tail);
    return;
  }
  const int64_t most = options_.block_bytes * options_.queue_depth;
  for (int64_t at = offset; at < end;) {
    const int64_t next = std::min(end, (at + most) / kAlign * kAlign);
    bounced(data + (at - offset), at, next - at);
    at = next;
  }
}

DiskSpace disk_space(const std::filesystem::path& folder, const std::string& key) {
  auto refuse = [&](const char* what) {
    fail(Exit::usage, "{}: {}: {}; choose a writable folder on a local disk", key, folder.string(), what);
  };
  struct stat s {};
  struct statvfs v {};
  if (stat(folder.c_str(), &s) != 0 || statvfs(folder.c_str(), &v) != 0) refuse(std::strerror(errno));
  if (!S_ISDIR(s.st_mode)) refuse("not a folder");
  if (faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) refuse(std::strerror(errno));
  return {int64_t(v.f_bavail) * int64_t(v.f_frsize), int64_t(s.st_dev)};
}

}  // namespace cleave::offload
