// A stream's CUDA side, as the bodies of kernels see it.
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

// What a kernel may find wrong in its operands. It keeps the first index with its value in one 64-bit word,
// so that atomicMin decides and the answer does not depend on timing.
enum class Fault : uint8_t { token, target };
inline constexpr int kFaults = 2;

// A stream that does not wait for the default one, of the highest priority where its turn is first.
cudaError_t make_stream(cudaStream_t* stream, Stream::Turn turn);

class CudaQueue final : public Queue {
 public:
  CudaQueue(Device device, Stream::Turn turn);  // with a stream of its own
  explicit CudaQueue(Stream::Foreign foreign);  // Error(usage) where it is no stream of the device
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
  int64_t shared_of_block() const { return shared_of_block_; }  // bytes that a block can have at most
  // The stream, with its GPU made current on the calling thread.
  cudaStream_t use();
  // Scratch until the op that asks for it ends, 256-byte aligned; Error(internal) when it is larger than what
  // was lent.
  void* scratch(int64_t bytes);
  int64_t scratch_bytes() const { return std::min(kOwnScratch, scratch_.numel() / 2) / 256 * 256; }
  // The rest of it, for libraries.
  Tensor product_scratch() const { return scratch_.slice({scratch_bytes(), scratch_.numel()}); }
  // Where a kernel reports: atomicMin of (index << 32 | value). `limit` is for the message.
  unsigned long long* fault(Fault kind, int64_t limit);
  // synchronize() calls `check` last, which throws what was lost on the way of this stream's work. Once for
  // each key.
  void also_rethrow(const void* key, std::function<void()> check);
  // Throws what the last kernel launch on this thread left.
  void launched(const char* op) { check(cudaGetLastError(), op); }

  // Points recorded from now on belong to the capture that this stream is part of, until it is none.
  void set_capture(std::shared_ptr<const CudaPoint::Capture> capture) { capture_ = std::move(capture); }

  // What points of this stream are made of.
  const std::shared_ptr<StreamPoints>& points() const { return points_; }

  bool capturing() const { return capture_ != nullptr; }

  // Bytes behind the matrix products' scratch that hold what is measured and restored
  // (kernels/cuda/measure.h).
  int64_t held = 0;
  // Where kernels/cuda/product.cpp and cudnn_stream.cpp keep their handles, choices and plans.
  std::shared_ptr<void> products, cudnn;

 private:
  struct Failure {
    std::mutex mutex;
    std::exception_ptr first;
  };
  struct Gate {  // a word on which the GPU waits until a CPU stream's event
    uint32_t* word = nullptr;
    uint32_t value = 0;
    Event event;
  };

  struct Slot {  // page-locked memory through which pageable memory goes
    std::byte* bytes = nullptr;
    uint32_t free_at = 0;  // the stream's mark
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

// The queue of a stream that is on_cuda().
inline CudaQueue& cuda_queue(Stream& stream) { return static_cast<CudaQueue&>(*stream.queue()); }

}  // namespace cleave
