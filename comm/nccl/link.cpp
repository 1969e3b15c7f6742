#include "comm/nccl/link.h"

#include <cstdio>
#include <thread>

#include "device/cuda/check.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kParting = 5s;

// A stream, and memory for its calls.
struct Scratch {
  Scratch(size_t floats, int device) {
    cuda_check(make_stream(&stream, Stream::Turn::first), "cudaStreamCreate", device);
    cuda_check(cudaMalloc(reinterpret_cast<void**>(&memory), floats * sizeof(float)), "cudaMalloc", device);
  }
  ~Scratch() {
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    cudaFree(memory);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  cudaStream_t stream = nullptr;
  float* memory = nullptr;
};

}  // namespace

NcclLink::NcclLink(Group& group, const Waiting& w, Member member, const ncclUniqueId& id)
    : nccl_(nccl_library()), group_(group), member_(member), flights_(group, member.rank, member.device) {
  cuda_check(cudaSetDevice(member.device), "cudaSetDevice", member.device);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result = nccl_.comm_init_rank_config(&comm_, member.size, id, member.rank, &config);
  try {
    settle(w, result, "creating the communicator");
  } catch (...) {
    abort("it does not exist yet");
    throw;
  }
}

NcclLink::~NcclLink() {
  cudaSetDevice(member_.device);
  {
    std::lock_guard lock(mutex_);
    const bool idle = comm_ && flights_.all_done();
    const auto until = Clock::now() + kParting;
    if (idle)
      for (void* handle : registered_) settled(nccl_.comm_deregister(comm_, handle), until);
    if (idle && settled(nccl_.comm_finalize(comm_), until) == ncclSuccess)
      nccl_.comm_destroy(std::exchange(comm_, nullptr));
  }
  abort("it was closed");
}

// Result of an NCCL call that continues in the background.
ncclResult_t NcclLink::settled(ncclResult_t result, Clock::time_point until) const {
  while (result == ncclInProgress && Clock::now() < until) {
    std::this_thread::sleep_for(100us);
    if (nccl_.comm_get_async_error(comm_, &result) != ncclSuccess) return ncclSystemError;
  }
  return result;
}

bool NcclLink::use_in_place(std::span<const Tensor> buffers) {
  std::lock_guard lock(mutex_);
  if (!comm_) return false;
  const auto until = Clock::now() + kParting;
  ncclResult_t result = ncclSuccess;
  for (void* handle : registered_)
    if (result == ncclSuccess) result = settled(nccl_.comm_deregister(comm_, handle), until);
  registered_.clear();
  for (const Tensor& t : buffers) {
    void* handle = nullptr;
    if (result == ncclSuccess)
      result = settled(nccl_.comm_register(comm_, t.raw(), size_t(t.bytes()), &handle), until);
    if (result == ncclSuccess && handle) registered_.push_back(handle);
  }
  if (result != ncclSuccess)
    std::fprintf(stderr, "warning: cuda:%d: group '%s': NCCL does not use buffers in place: %s\n",
                 member_.device, group_.name().c_str(), nccl_.get_error_string(result));
  return result == ncclSuccess;
}

ncclResult_t NcclLink::state() {
  std::lock_guard lock(mutex_);
  ncclResult_t now = ncclSystemError;
  if (comm_ && nccl_.comm_get_async_error(comm_, &now) != ncclSuccess) now = ncclSystemError;
  return now;
}

std::string NcclLink::explain(ncclResult_t result) {
  std::lock_guard lock(mutex_);
  const char* detail = nccl_.get_last_error(comm_);
  return fmt::format("{}{}{}", nccl_.get_error_string(result), detail && *detail ? ": " : "",
                     detail ? detail : "");
}

void NcclLink::throw_if_given_up(const Waiting& w) {
  std::lock_guard lock(mutex_);
  require(given_up_.empty(), Exit::rank_lost, "{} was aborted: {}", describe(w), given_up_);
}

void NcclLink::wait_until(const Waiting& w, const char* doing, const std::function<bool()>& done) {
  const auto deadline = group_.deadline();
  while (!done()) {
    throw_if_given_up(w);
    const std::string lost = group_.lost();
    require(lost.empty(), Exit::rank_lost, "{} was aborted: {}", describe(w), lost);
    if (Clock::now() > deadline)
      group_.give_up(w, fmt::format("{}: NCCL did not finish {} within {:.1f} s", describe(w), doing,
                                    double(group_.options().timeout.count()) / 1000));
    std::this_thread::sleep_for(50us);
  }
}

// Non-blocking NCCL calls may continue in the background; the next call must wait for them.
void NcclLink::settle(const Waiting& w, ncclResult_t result, const char* doing) {
  wait_until(w, doing, [&] {
    if (result == ncclInProgress) result = state();
    return result != ncclInProgress;
  });
  if (result == ncclSuccess) return;
  throw_if_given_up(w);
  group_.give_up(w,
                 fmt::format("{}: NCCL failed {}: {}; set NCCL_DEBUG=WARN for details, or use "
                             "--gpu_transport host instead of NCCL",
                             describe(w), doing, explain(result)),
                 result == ncclInvalidUsage || result == ncclInvalidArgument ? Exit::usage : Exit::rank_lost);
}

void NcclLink::enqueue(const Waiting& w, cudaStream_t stream, const Body& body) {
  throw_if_given_up(w);
  ncclResult_t result = ncclSystemError;
  flights_.begin(w, stream);
  {
    std::lock_guard lock(mutex_);
    if (comm_) result = body(nccl_, comm_);
  }
  settle(w, result, "enqueueing");
  flights_.end(stream);
}

void NcclLink::make_first_calls(const Waiting& w, std::span<const FirstCall> calls) {
  const Scratch scratch(size_t(2 * member_.size), member_.device);
  try {
    for (const FirstCall& call : calls)
      enqueue(w, scratch.stream, [&](const NcclLibrary& nccl, ncclComm_t comm) {
        return call(nccl, comm, scratch.memory, scratch.memory + member_.size, scratch.stream);
      });
    cudaError_t state = cudaErrorNotReady;
    wait_until(w, "the first calls",
               [&] { return (state = cudaStreamQuery(scratch.stream)) != cudaErrorNotReady; });
    cudaGetLastError();  // "not ready" stays as an error until it is read
    cuda_check(state, "cudaStreamQuery", member_.device);
  } catch (...) {
    abort("its first calls failed");  // the stream could wait for a lost rank
    throw;
  }
  throw_if_given_up(w);
}

void NcclLink::finish() {
  for (const auto until = Clock::now() + kParting; Clock::now() < until && group_.lost().empty();
       std::this_thread::sleep_for(100us)) {
    std::lock_guard lock(mutex_);
    if (!comm_ || flights_.all_done()) return;
  }
}

std::string NcclLink::trouble() {
  std::lock_guard lock(mutex_);
  if (!comm_) return {};
  ncclResult_t now = ncclSuccess;
  const bool asked = nccl_.comm_get_async_error(comm_, &now) == ncclSuccess;
  if (!asked || (now != ncclSuccess && now != ncclInProgress))
    return flights_.report(
        fmt::format("NCCL reports: {}", nccl_.get_error_string(asked ? now : ncclSystemError)));
  return flights_.trouble([&](const Waiting& w, const Flights::Flight&) {
    return fmt::format(
        "{}: not done {:.1f} s after this GPU reached it; a rank of the group is late or made another call "
        "(the last lines of the other ranks show which)",
        describe(w), double(group_.options().timeout.count()) / 1000);
  });
}

void NcclLink::abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (given_up_.empty()) given_up_ = reason;
  if (comm_) nccl_.comm_abort(std::exchange(comm_, nullptr));
}

}  // namespace cleave::comm
