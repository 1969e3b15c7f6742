#include "device/cuda/queue.h"

#include <atomic>
#include <cstring>

#include "device/cuda/check.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/words.h"
#include "device/failed_work.h"

namespace cleave {
namespace {

// At the start of the workspace, before the scratch.
constexpr int64_t kFaultBytes = 256, kTellsAt = 2048, kGateBytes = 4096;
constexpr int64_t kLeastForSlots = int64_t{1} << 20;
constexpr unsigned long long kNoFault = ~0ull;

}  // namespace

std::unique_ptr<Queue> make_cuda_queue(Device device, Stream::Turn turn) {
  return std::make_unique<CudaQueue>(device, turn);
}
std::unique_ptr<Queue> adopt_cuda_queue(Stream::Foreign foreign) {
  return std::make_unique<CudaQueue>(foreign);
}

cudaError_t make_stream(cudaStream_t* stream, Stream::Turn turn) {
  int last = 0, first = 0;
  if (const cudaError_t e = cudaDeviceGetStreamPriorityRange(&last, &first); e != cudaSuccess) return e;
  return cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, turn == Stream::Turn::first ? first : 0);
}

CudaQueue::CudaQueue(Device device, Stream::Turn turn) : device_(device.index) {
  look_at_device();
  check(make_stream(&stream_, turn), "cudaStreamCreate");
  points_ = std::make_shared<StreamPoints>(stream_, device_);
}

CudaQueue::CudaQueue(Stream::Foreign foreign)
    : device_(foreign.device.index), stream_(static_cast<cudaStream_t>(foreign.handle)), owns_(false) {
  look_at_device();
  points_ = std::make_shared<StreamPoints>(stream_, device_);
  const cudaError_t answer = cudaStreamQuery(stream_);
  if (answer == cudaErrorNotReady)
    cudaGetLastError();  // the next launch would report it
  else
    check(answer, "a stream that was given to adopt");
}

void CudaQueue::look_at_device() {
  before_cuda_starts();
  check(cudaSetDevice(device_), "cudaSetDevice");
  check(cudaDeviceGetAttribute(&shared_of_block_, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_),
        "cudaDeviceGetAttribute");
}

CudaQueue::~CudaQueue() {
  cudaSetDevice(device_);
  points_->close(cudaStreamSynchronize(stream_));
  products.reset(), cudnn.reset();
  if (owns_) cudaStreamDestroy(stream_);
}

void CudaQueue::check(cudaError_t error, const char* call) const { cuda_check(error, call, device_); }

cudaStream_t CudaQueue::use() {
  check(cudaSetDevice(device_), "cudaSetDevice");
  return stream_;
}

void CudaQueue::enqueue(std::function<void()> task) {
  struct HostCall {
    std::function<void()> task;
    std::shared_ptr<Failure> failure;
  };
  auto call = std::make_unique<HostCall>(HostCall{std::move(task), failure_});
  const cudaHostFn_t run = [](void* data) {
    const std::unique_ptr<HostCall> mine(static_cast<HostCall*>(data));
    {
      std::lock_guard lock(mine->failure->mutex);
      if (mine->failure->first) return;
    }
    try {
      mine->task();
    } catch (...) {
      std::lock_guard lock(mine->failure->mutex);
      if (!mine->failure->first) mine->failure->first = std::current_exception();
    }
  };
  check(cudaLaunchHostFunc(use(), run, call.get()), "cudaLaunchHostFunc");
  call.release();
}

void CudaQueue::copy(void* to, const void* from, int64_t bytes) {
  check(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDefault, use()), "cudaMemcpyAsync");
}

// CUDA's own copy from pageable memory waits for the stream while it holds a lock that other threads need.
void CudaQueue::upload(void* to, const void* from, int64_t bytes) {
  if (slot_bytes_ == 0 || capture_) {
    if (!capture_) check(cudaStreamSynchronize(use()), "cudaStreamSynchronize");
    return copy(to, from, bytes);
  }
  for (int64_t at = 0; at < bytes; at += slot_bytes_) {
    Slot& slot = slots_[next_slot_++ % slots_.size()];
    points_->wait_for_mark(slot.free_at);
    const int64_t n = std::min(slot_bytes_, bytes - at);
    std::memcpy(slot.bytes, static_cast<const std::byte*>(from) + at, size_t(n));
    copy(static_cast<std::byte*>(to) + at, slot.bytes, n);
    points_->mark(slot.free_at);
  }
}

void CudaQueue::download(void* to, const void* from, int64_t bytes) {
  CHECK(!capture_, "cuda:{}: captured work is copied to pageable memory", device_);
  check(cudaStreamSynchronize(use()), "cudaStreamSynchronize");
  copy(to, from, bytes);
}

Event CudaQueue::record() {
  use();
  return Event(std::make_shared<CudaPoint>(points_, capture_));
}

// A CPU stream's event opens a gate, which is a word in pinned memory that the GPU polls. This blocks neither
// the host nor a driver thread. A gate is reused only after its last event has happened. This stream also
// throws the CPU stream's failure, because the CPU stream may never be synchronized.
void CudaQueue::wait(const Event& event) {
  if (const auto* point = dynamic_cast<const CudaPoint*>(event.state())) return point->hold(use(), capture_);
  CHECK(!capture_, "cuda:{}: captured work waits for the CPU", device_);
  CHECK(gates_[0].word, "a CUDA stream waits for the CPU before it has a workspace");
  Gate& gate = gates_[next_gate_++ % gates_.size()];
  gate.event.wait();
  gate.event = event;
  const uint32_t value = ++gate.value;
  // Throwing calls come first: an event must not open a gate that no longer exists.
  wait_for_word(use(), gate.word, value, device_);
  event.state()->then([point = event.state(), failure = failure_, word = gate.word, value] {
    if (std::exception_ptr failed = failure_before(*point)) {
      std::lock_guard lock(failure->mutex);
      if (!failure->first) failure->first = std::move(failed);
    }
    std::atomic_ref(*word).store(value, std::memory_order_release);
  });
}

void CudaQueue::lend(const Tensor& device, const Tensor& pinned) {
  CHECK(device.bytes() > 2 * kFaultBytes && pinned.bytes() > 2 * kGateBytes, "a workspace of {} and {} bytes",
        device.bytes(), pinned.bytes());
  void* reached = nullptr;
  if (cudaHostGetDevicePointer(&reached, pinned.raw(), 0) != cudaSuccess) {
    cudaGetLastError();
    fail(Exit::memory,
         "cuda:{}: {} bytes of host memory that the GPU waits on could not be page-locked; allow more: "
         "ulimit -l, and the container's memory limit",
         device_, pinned.bytes());
  }
  faults_ = static_cast<unsigned long long*>(device.raw());
  scratch_ = device.slice({kFaultBytes, device.bytes()});
  seen_ = static_cast<unsigned long long*>(pinned.raw());
  auto* words = reinterpret_cast<uint32_t*>(static_cast<std::byte*>(pinned.raw()) + kFaultBytes);
  for (size_t i = 0; i < gates_.size(); ++i) gates_[i] = {words + i, 0, {}};
  static_assert(kFaultBytes + int64_t(sizeof(uint32_t) * std::tuple_size_v<decltype(gates_)>) <= kTellsAt);
  points_->tell_by(reinterpret_cast<uint32_t*>(static_cast<std::byte*>(pinned.raw()) + kTellsAt));
  pinned_ = pinned.slice({kGateBytes, pinned.bytes()});
  slot_bytes_ = 0;
  if (pinned_.bytes() < kLeastForSlots) return clear_faults();
  slot_bytes_ = pinned_.bytes() / 4 / int64_t(slots_.size()) / 4096 * 4096;
  const int64_t slots_at = pinned_.bytes() - slot_bytes_ * int64_t(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i)
    slots_[i] = {static_cast<std::byte*>(pinned_.raw()) + slots_at + slot_bytes_ * int64_t(i),
                 points_->marks()};
  pinned_ = pinned_.slice({0, slots_at});
  clear_faults();
}

Tensor CudaQueue::pinned() const {
  CHECK(pinned_.defined(), "values of the host on cuda:{} before its stream has a workspace", device_);
  return pinned_;
}

void* CudaQueue::scratch(int64_t bytes) {
  CHECK(scratch_.defined(), "a kernel on cuda:{} before its stream has a workspace", device_);
  CHECK(bytes <= scratch_bytes(),
        "a kernel on cuda:{} needs {} bytes of scratch, but its workspace has {} (device/workspace.h)",
        device_, bytes, scratch_bytes());
  return scratch_.raw();
}

unsigned long long* CudaQueue::fault(Fault kind, int64_t limit) {
  CHECK(faults_, "a kernel on cuda:{} before its stream has a workspace", device_);
  limits_[size_t(kind)] = limit;
  armed_ = true;
  return faults_ + size_t(kind);
}

void CudaQueue::clear_faults() {
  check(cudaMemsetAsync(faults_, 0xff, kFaults * sizeof *faults_, use()), "cudaMemsetAsync");
  armed_ = false;
}

void CudaQueue::synchronize() {
  CHECK(!capture_, "cuda:{}: the host waits for work that is still being captured", device_);
  if (armed_)
    check(cudaMemcpyAsync(seen_, faults_, kFaults * sizeof *faults_, cudaMemcpyDefault, use()),
          "cudaMemcpyAsync");
  const cudaError_t ended = cudaStreamSynchronize(use());
  if (ended != cudaSuccess)  // a lost peer is the cause of later errors
    for (const auto& [key, rethrow] : checks_) rethrow();
  check(ended, "cudaStreamSynchronize");
  {
    std::lock_guard lock(failure_->mutex);
    if (auto failure = std::exchange(failure_->first, nullptr)) std::rethrow_exception(failure);
  }
  for (const auto& [key, check] : checks_) check();
  if (armed_) report_faults();
}

void CudaQueue::also_rethrow(const void* key, std::function<void()> check) {
  for (const auto& known : checks_)
    if (known.first == key) return;
  checks_.emplace_back(key, std::move(check));
}

void CudaQueue::report_faults() {
  const unsigned long long token = seen_[size_t(Fault::token)], target = seen_[size_t(Fault::target)];
  armed_ = false;
  if (token == kNoFault && target == kNoFault) return;
  clear_faults();
  auto place = [](unsigned long long word) { return int64_t(word >> 32); };
  auto value = [](unsigned long long word) { return int32_t(uint32_t(word)); };
  require(
      token == kNoFault, Exit::data,
      "token {} at position {} of the batch is outside the vocabulary [0, {}); the data was tokenized for "
      "another "
      "model, or vocab_size is too small",
      value(token), place(token), limits_[size_t(Fault::token)]);
  fail(Exit::data,
       "target {} at position {} of the batch is neither in the vocabulary [0, {}) nor -100 (ignored)",
       value(target), place(target), limits_[size_t(Fault::target)]);
}

}  // namespace cleave
