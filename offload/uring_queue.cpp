#include <liburing.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "offload/disk_queue.h"

namespace cleave::offload {
namespace {

// Held during creation and destruction of rings. The kernel reuses the pages of a ring for the next one, by
// calls that ThreadSanitizer does not see; this lock provides the order between their users.
std::mutex& rings() {
  static std::mutex mutex;
  return mutex;
}

// See io_uring(7). A short request is submitted again for the rest, like a short pread.
class UringQueue final : public DiskQueue {
 public:
  UringQueue(int depth, int& error) : depth_(size_t(depth)) {
    std::lock_guard lock(rings());
    error = -io_uring_queue_init(unsigned(depth), &ring_, 0);
    alive_ = error == 0;
    if (!alive_) return;
    io_uring_probe* known = io_uring_get_probe_ring(&ring_);
    if (!known || !io_uring_opcode_supported(known, IORING_OP_WRITE)) error = ENOSYS;
    io_uring_free_probe(known);
  }
  ~UringQueue() override { close(); }

  std::optional<DiskFault> run(int file, bool write, std::span<const DiskRequest> requests) override {
    if (!alive_ && !requests.empty()) return DiskFault{requests[0], 0, EIO};
    std::vector<int64_t> done(requests.size(), 0);
    std::vector<size_t> waiting;  // indices; the last one is next
    for (size_t i = requests.size(); i-- > 0;) waiting.push_back(i);
    std::optional<DiskFault> first;
    size_t flying = 0;
    while (flying > 0 || (!first && !waiting.empty())) {
      for (; !first && flying < depth_ && !waiting.empty(); ++flying, waiting.pop_back())
        submit(file, write, requests[waiting.back()], done[waiting.back()], waiting.back());
      const int submitted = io_uring_submit_and_wait(&ring_, 1);
      if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY) {
        close();  // cancels and waits for requests in flight
        return DiskFault{requests[0], 0, -submitted};
      }
      io_uring_cqe* completed = nullptr;
      for (; io_uring_peek_cqe(&ring_, &completed) == 0; --flying) {
        const size_t i = size_t(completed->user_data);
        const int result = completed->res;
        io_uring_cqe_seen(&ring_, completed);
        if (result > 0) done[i] += result;
        if (done[i] == requests[i].bytes) continue;
        if (result > 0 || result == -EINTR || result == -EAGAIN)
          waiting.push_back(i);
        else if (!first)
          first = DiskFault{requests[i], done[i], -result};
      }
    }
    return first;
  }

 private:
  void submit(int file, bool write, const DiskRequest& r, int64_t done, size_t i) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);  // never null: at most depth_ are in flight
    const auto bytes = unsigned(r.bytes - done);
    if (write)
      io_uring_prep_write(entry, file, r.data + done, bytes, uint64_t(r.offset + done));
    else
      io_uring_prep_read(entry, file, r.data + done, bytes, uint64_t(r.offset + done));
    entry->user_data = i;
  }
  void close() {
    std::lock_guard lock(rings());
    if (alive_) io_uring_queue_exit(&ring_);
    alive_ = false;
  }

  io_uring ring_{};
  size_t depth_;
  bool alive_ = false;
};

}  // namespace

std::string liburing_version() { return CLEAVE_URING_VERSION; }

std::unique_ptr<DiskQueue> make_uring_queue(int depth, std::string& refusal) {
  int error = 0;
  auto queue = std::make_unique<UringQueue>(depth, error);
  if (error == 0) return queue;
  refusal = std::strerror(error);
  return nullptr;
}

}  // namespace cleave::offload
