#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <thread>
#include <vector>

#include "offload/disk_queue.h"

namespace cleave::offload {
namespace {

std::optional<DiskFault> transfer(int file, bool write, const DiskRequest& r) {
  for (int64_t done = 0; done < r.bytes;) {
    const size_t left = size_t(r.bytes - done);
    const ssize_t n = write ? pwrite(file, r.data + done, left, r.offset + done)
                            : pread(file, r.data + done, left, r.offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return DiskFault{r, done, n < 0 ? errno : 0};
    done += n;
  }
  return std::nullopt;
}

// Threads live for one run: starting them takes microseconds, a run of several requests milliseconds.
class ThreadQueue final : public DiskQueue {
 public:
  explicit ThreadQueue(int threads) : threads_(threads) {}

  std::optional<DiskFault> run(int file, bool write, std::span<const DiskRequest> requests) override {
    std::atomic<size_t> next{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::optional<DiskFault> first;
    auto work = [&] {
      for (size_t i; !failed && (i = next++) < requests.size();)
        if (const auto fault = transfer(file, write, requests[i])) {
          std::lock_guard lock(mutex);
          if (!first) first = fault;
          failed = true;
        }
    };
    std::vector<std::jthread> others(std::min(size_t(threads_), requests.size()) -
                                     (requests.empty() ? 0 : 1));
    for (std::jthread& t : others) t = std::jthread(work);
    work();
    others.clear();  // joins the threads
    return first;
  }

 private:
  int threads_;
};

}  // namespace

std::unique_ptr<DiskQueue> make_thread_queue(int threads) { return std::make_unique<ThreadQueue>(threads); }

}  // namespace cleave::offload
