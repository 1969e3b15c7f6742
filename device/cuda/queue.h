// CUDA side of a stream, for kernel bodies.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>
#include <vector>

#include "device/cuda/points.h"
#include "device/queue.h"
#include "device/workspace.h"

namespace cleave {

// Faults that a kernel may find in its operands. The first index and its value are packed into a 64-bit word,
// so atomicMin selects the first fault independently of timing.
enum class Fault : uint8_t { token, target };
inline constexpr int kFaults = 2;

// Creates a stream that does not synchronize with the default stream; highest priority for Turn::first.
cudaError_t make_stream(cudaStream_t* stream, Stream::Turn turn);

class CudaQueue final : public Queue {
 public:
  CudaQueue(Device device, Stream::Turn turn);  // creates its own stream
  explicit CudaQueue(Stream::Foreign foreign);  // Error(usage) if it is not a stream of the device
  ~CudaQueue() override;

  void enqueue(std::function<void()> task) override;
  void copy(void* to, const void* from, int64_t bytes) override;
  void upload(void* to, const void* from, int64_t bytes) override;
  void download(void* to, const void* from, int64_t bytes) override;
  Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;
  void lend(const Tensor& device, const Tensor& pinned) override;
  Tensor pinned() const override;

  int device() const { return device_; }
  int64_t shared_of_block() const { return shared_of_block_; }  // maximum shared memory of a block in bytes
  // Returns the stream and makes its GPU current on the calling thread.
  cudaStream_t use();
  // Returns 256-byte aligned scratch, valid until the calling op ends. Error(internal) if it exceeds the
  // workspace.
  void* scratch(int64_t bytes);
  int64_t scratch_bytes() const { return std::min(kOwnScratch, scratch_.numel() / 2) / 256 * 256; }
  // The remaining scratch, for libraries.
  Tensor product_scratch() const { return scratch_.slice({scratch_bytes(), scratch_.numel()}); }
  // Address where a kernel reports a fault: atomicMin of (index << 32 | value). `limit` is for the message.
  unsigned long long* fault(Fault kind, int64_t limit);
  // Registers `check` once per key. synchronize() calls it last; it throws errors of libraries that work on
  // this stream.
  void also_rethrow(const void* key, std::function<void()> check);
  // Throws the error of this thread's last kernel launch.
  void launched(const char* op) { check(cudaGetLastError(), op); }

  // Assigns later points to this stream's capture; null ends this.
  void set_capture(std::shared_ptr<const CudaPoint::Capture> capture) { capture_ = std::move(capture); }

  // Resources of this stream's points.
  const std::shared_ptr<StreamPoints>& points() const { return points_; }

  bool capturing() const { return capture_ != nullptr; }

  // Bytes after the scratch of matrix products that hold measured and restored data (kernels/cuda/measure.h).
  int64_t held = 0;
  // Handles, choices and plans of kernels/cuda/product.cpp and cudnn_stream.cpp.
  std::shared_ptr<void> products, cudnn;

 private:
  struct Failure {
    std::mutex mutex;
    std::exception_ptr first;
  };
  struct Gate {  // a word that the GPU polls until a CPU stream's event
    uint32_t* word = nullptr;
    uint32_t value = 0;
    Event event;
  };

  struct Slot {  // page-locked staging memory for copies of pageable memory
    std::byte* bytes = nullptr;
    uint32_t free_at = 0;  // mark of the stream
  };

  void look_at_device();
  void check(cudaError_t error, const char* call) const;
  void report_faults();
  void clear_faults();

  int device_, shared_of_block_ = 0;
  cudaStream_t stream_ = nullptr;
  bool owns_ = true;
  std::shared_ptr<StreamPoints> points_;
  std::shared_ptr<const CudaPoint::Capture> capture_;
  std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  Tensor scratch_, pinned_;
  unsigned long long *faults_ = nullptr, *seen_ = nullptr;  // on the GPU, in pinned memory
  std::array<int64_t, kFaults> limits_{};
  bool armed_ = false;
  std::vector<std::pair<const void*, std::function<void()>>> checks_;
  std::array<Gate, 256> gates_;
  size_t next_gate_ = 0;
  std::array<Slot, 8> slots_;
  int64_t slot_bytes_ = 0;
  size_t next_slot_ = 0;
};

// Returns the queue of a stream that is on_cuda().
inline CudaQueue& cuda_queue(Stream& stream) { return static_cast<CudaQueue&>(*stream.queue()); }

}  // namespace cleave
