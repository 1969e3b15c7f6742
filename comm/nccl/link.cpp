#include "comm/nccl/link.h"

#include <cstdio>
#include <system_error>
#include <thread>
#include <utility>

#include "core/warnings.h"
#include "device/cuda/check.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kParting = 5s;
constexpr auto kLeaving = 1s;  // a call returns by then unless its stream is full

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
  const auto made = std::make_shared<ncclComm_t>();  // for a thread that stays behind
  const auto make = [nccl = &nccl_, made, member, id] {
    cuda_check(cudaSetDevice(member.device), "cudaSetDevice", member.device);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    return nccl->comm_init_rank_config(made.get(), member.size, id, member.rank, &config);
  };
  const ncclResult_t result = result_of(w, aside(make), "creating the communicator");
  comm_ = *made;
  require_success(w, settled(comm_, result), "creating the communicator");
}

NcclLink::~NcclLink() {
  ncclComm_t comm = nullptr;
  if (flights_.all_done()) {
    std::lock_guard lock(mutex_);
    comm = std::exchange(comm_, nullptr);
  }
  if (comm)
    aside([nccl = &nccl_, device = member_.device, comm, registered = registered_] {
      cudaSetDevice(device);
      for (void* handle : registered) nccl->comm_deregister(comm, handle);
      return nccl->comm_destroy(comm);
    }).wait_for(kParting);
  abort("it was closed");
  if (aborted_.valid()) aborted_.wait_for(kParting);
}

std::future<ncclResult_t> NcclLink::aside(std::function<ncclResult_t()> call) {
  const auto task = std::make_shared<std::packaged_task<ncclResult_t()>>(std::move(call));
  try {
    std::thread([task] { (*task)(); }).detach();
  } catch (const std::system_error&) {  // no more threads; abort() must not fail
    (*task)();
  }
  return task->get_future();
}

ncclResult_t NcclLink::result_of(const Waiting& w, std::future<ncclResult_t> call, const char* doing) {
  wait_until(w, doing, [&] { return call.wait_for(0s) == std::future_status::ready; });
  return call.get();
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

// The user's NCCL_COMM_BLOCKING=0 lets calls continue in the background; the next call must wait for them.
ncclResult_t NcclLink::settled(ncclComm_t comm, ncclResult_t result) const {
  while (result == ncclInProgress) {
    std::this_thread::sleep_for(50us);
    if (nccl_.comm_get_async_error(comm, &result) != ncclSuccess) return ncclSystemError;
  }
  return result;
}

void NcclLink::require_success(const Waiting& w, ncclResult_t result, const char* doing) {
  if (result == ncclSuccess) return;
  throw_if_given_up(w);
  group_.give_up(w,
                 fmt::format("{}: NCCL failed {}: {}; set NCCL_DEBUG=WARN for details, or use "
                             "--gpu_transport host instead of NCCL",
                             describe(w), doing, explain(result)),
                 result == ncclInvalidUsage || result == ncclInvalidArgument ? Exit::usage : Exit::rank_lost);
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

NcclLink::Entered::Entered(NcclLink& l, const Waiting& w) : link(l) {
  std::lock_guard lock(link.mutex_);
  require(link.given_up_.empty(), Exit::rank_lost, "{} was aborted: {}", describe(w), link.given_up_);
  link.inside_ = true;
  comm = link.comm_;
}

NcclLink::Entered::~Entered() {
  std::lock_guard lock(link.mutex_);
  link.inside_ = false;
}

void NcclLink::enqueue(const Waiting& w, cudaStream_t stream, const Body& body) {
  throw_if_given_up(w);
  flights_.begin(w, stream);
  ncclResult_t result = ncclSuccess;
  {
    const Entered now(*this, w);
    result = settled(now.comm, body(nccl_, now.comm));
  }
  require_success(w, result, "enqueueing");
  flights_.end(stream);
}

void NcclLink::make_first_calls(const Waiting& w, std::span<const FirstCall> calls) {
  const auto scratch = std::make_shared<Scratch>(size_t(2 * member_.size), member_.device);
  try {
    for (const FirstCall& call : calls) {
      flights_.begin(w, scratch->stream);
      const Entered now(*this, w);
      const auto make = [nccl = &nccl_, call, scratch, member = member_, comm = now.comm] {
        cuda_check(cudaSetDevice(member.device), "cudaSetDevice", member.device);
        return call(*nccl, comm, scratch->memory, scratch->memory + member.size, scratch->stream);
      };
      const ncclResult_t result = result_of(w, aside(make), "the first calls");
      require_success(w, settled(now.comm, result), "the first calls");
      flights_.end(scratch->stream);
    }
    cudaError_t state = cudaErrorNotReady;
    wait_until(w, "the first calls",
               [&] { return (state = cudaStreamQuery(scratch->stream)) != cudaErrorNotReady; });
    cudaGetLastError();  // "not ready" stays as an error until it is read
    cuda_check(state, "cudaStreamQuery", member_.device);
  } catch (...) {
    abort("its first calls failed");  // the stream could wait for a lost rank
    throw;
  }
  throw_if_given_up(w);
}

bool NcclLink::use_in_place(std::span<const Tensor> buffers) {
  std::lock_guard lock(mutex_);
  if (!comm_) return false;
  ncclResult_t result = ncclSuccess;
  for (void* handle : registered_)
    if (result == ncclSuccess) result = settled(comm_, nccl_.comm_deregister(comm_, handle));
  registered_.clear();
  for (const Tensor& t : buffers) {
    void* handle = nullptr;
    if (result == ncclSuccess)
      result = settled(comm_, nccl_.comm_register(comm_, t.raw(), size_t(t.bytes()), &handle));
    if (result == ncclSuccess && handle) registered_.push_back(handle);
  }
  if (result != ncclSuccess)
    warn("cuda:{}: group '{}': NCCL does not use buffers in place: {}", member_.device, group_.name(),
         nccl_.get_error_string(result));
  return result == ncclSuccess;
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
  // NCCL moves data without a comparison; a collective hangs if its ranks differ.
  if (const std::string differ =
          flights_.compare_slow(kLongWait, [&](const Waiting& w) { return group_.difference(w); });
      !differ.empty())
    return differ;
  return flights_.trouble([&](const Waiting& w, const Flights::Flight&) {
    return fmt::format(
        "{}: not done {:.1f} s after this GPU reached it; a rank of the group is late or made another call "
        "(the last lines of the other ranks show which)",
        describe(w), double(group_.options().timeout.count()) / 1000);
  });
}

// A call whose stream is full returns only after the abort, which must not need CUDA before it ends the
// waits.
void NcclLink::abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (given_up_.empty()) given_up_ = reason, given_up_at_ = Clock::now();
  if (!comm_ || (inside_ && Clock::now() - given_up_at_ < kLeaving)) return;
  aborted_ = aside([nccl = &nccl_, comm = std::exchange(comm_, nullptr)] { return nccl->comm_abort(comm); });
}

}  // namespace cleave::comm
