#include "comm/ipc/link.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "comm/ipc/sum.h"
#include "device/cuda/check.h"
#include "device/cuda/words.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kGoodbye = 5s;
constexpr auto kLinkNap = 200us;

}  // namespace

IpcLink::IpcLink(Group& group, Shape shape, IpcWords words, IpcMemory own)
    : group_(group),
      shape_(std::move(shape)),
      slot_bytes_(shape_.slot_bytes),
      words_(std::move(words)),
      own_(std::move(own)),
      segments_(shape_.ranks.size()),
      planner_(shape_.index, size(), shape_.slot_bytes, shape_.slots),
      flights_(group, shape_.ranks[size_t(shape_.index)], shape_.device) {
  segments_[size_t(shape_.index)] = own_.data();
  check(cudaSetDevice(shape_.device), "cudaSetDevice");
  check(cudaEventCreateWithFlags(&last_, cudaEventDisableTiming), "cudaEventCreate");
}

// Frees the segment when no rank reads it any more. If that is unknown, because ranks are lost or late, keeps
// it until the process ends.
IpcLink::~IpcLink() {
  hang_up();
  if (own_.data() && !others_have_closed(Clock::now() + kGoodbye)) own_.leave();
  cudaEventDestroy(last_);
}

void IpcLink::hang_up() {
  if (std::exchange(hung_up_, true)) return;
  cudaSetDevice(shape_.device);
  bool done = stream_is_done(Clock::now() + kGoodbye);
  if (!done) abort("it was closed"), done = stream_is_done(Clock::now() + kGoodbye);
  if (done) {
    opened_.clear();
    words_.closed(shape_.index).store(1);
    return;
  }
  for (IpcMemory& memory : opened_) memory.leave();
  own_.leave(), words_.leave();
}

bool IpcLink::stream_is_done(Clock::time_point until) {
  cudaError_t state = cudaErrorNotReady;
  while ((state = cudaEventQuery(last_)) == cudaErrorNotReady && Clock::now() < until) {
    cudaGetLastError();
    {
      std::lock_guard lock(mutex_);
      if (!given_up_.empty()) release();
      if (given_up_.empty() && !group_.lost().empty()) break;
    }
    std::this_thread::sleep_for(kLinkNap);
  }
  if (state != cudaSuccess) cudaGetLastError();
  return state == cudaSuccess;
}

bool IpcLink::others_have_closed(Clock::time_point until) {
  const auto all = [&] {
    for (int r = 0; r < size(); ++r)
      if (words_.closed(r).load() == 0) return false;
    return true;
  };
  const bool given_up = [&] {
    std::lock_guard lock(mutex_);
    return !given_up_.empty();
  }();
  while (!all() && !given_up && group_.lost().empty() && Clock::now() < until)
    std::this_thread::sleep_for(kLinkNap);
  return all();
}

void IpcLink::check(cudaError_t error, const char* call) const { cuda_check(error, call, shape_.device); }

void IpcLink::throw_if_given_up(const Waiting& w) {
  std::lock_guard lock(mutex_);
  require(given_up_.empty(), Exit::rank_lost, "{} was aborted: {}", describe(w), given_up_);
}

// Holds no lock while it enqueues steps, which blocks if the stream is full; the watching thread must then be
// able to end the stream's waits.
void IpcLink::run(const Waiting& w, const IpcSteps& steps, const Tensor& in, const Tensor& out,
                  CudaQueue& queue) {
  if (steps.empty()) return;
  throw_if_given_up(w);
  const cudaStream_t stream = queue.use();
  const auto first = std::find_if(steps.begin(), steps.end(),
                                  [](const IpcStep& s) { return s.kind == IpcStep::Kind::signal; });
  check(cudaStreamWaitEvent(stream, last_, 0), "cudaStreamWaitEvent");
  planned_ = planner_.chunk();
  for (int r = 0; r < size(); ++r) words_.calls(r, shape_.index).tell(w.post);
  flights_.begin(w, stream, first->value);
  for (const IpcStep& step : steps) take(step, in, out, w.post.by, stream);
  check(cudaEventRecord(last_, stream), "cudaEventRecord");
  flights_.end(stream);
}

void IpcLink::take(const IpcStep& s, const Tensor& in, const Tensor& out, Reduction by, cudaStream_t stream) {
  const auto* from = static_cast<const std::byte*>(in.raw());
  auto* to = static_cast<std::byte*>(out.raw()) + s.to;
  const auto move = [&](void* target, const void* source) {
    if (target != source && s.bytes > 0)
      check(cudaMemcpyAsync(target, source, size_t(s.bytes), cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  };
  switch (s.kind) {
    case IpcStep::Kind::wait:
      return wait_for_word(stream, words_.on_gpu(words_.word(shape_.index, s.rank, s.word)), s.value,
                           shape_.device);
    case IpcStep::Kind::put:
      return move(own_.data() + s.to, from + s.from);
    case IpcStep::Kind::get:
      return move(to, segments_[size_t(s.rank)] + s.from);
    case IpcStep::Kind::move:
      return move(to, from + s.from);
    case IpcStep::Kind::reduce: {
      std::vector<const std::byte*> sources;
      for (const std::byte* segment : segments_) sources.push_back(segment + s.from);
      sources[size_t(shape_.index)] = from + s.own;
      return reduce_in_order_on_gpu(by, out.dtype(), to, sources, s.bytes / size_of(out.dtype()), stream,
                                    shape_.device);
    }
    case IpcStep::Kind::signal:
      for (int r = 0; r < size(); ++r)
        if (r != shape_.index)
          write_word(stream, words_.on_gpu(words_.word(r, shape_.index, s.word)), s.value, shape_.device);
      return;
  }
}

std::string IpcLink::trouble() {
  std::lock_guard lock(mutex_);
  if (const std::string differ = disagreement_with_others(); !differ.empty()) return flights_.report(differ);
  return flights_.trouble([&](const Waiting& w, const Flights::Flight& f) { return late(w, f); });
}

// For messages, both ranks can compare only size and type, and already know them.
std::string IpcLink::disagreement_with_others() const {
  if (shape_.slots == 1) return {};
  for (int r = 0; r < size(); ++r) {
    if (r == shape_.index) continue;
    const std::string differ =
        disagreement(words_.calls(shape_.index, shape_.index), words_.calls(shape_.index, r),
                     group_.ranks()[size_t(shape_.index)], group_.ranks()[size_t(r)]);
    if (!differ.empty()) return differ;
  }
  return {};
}

// A rank that reached the call has started its first chunk: it has filled its slot, or read others if it only
// reads.
std::string IpcLink::late(const Waiting& w, const Flights::Flight& flight) const {
  std::vector<bool> present(size_t(group_.size()), true);
  bool all = true;
  for (int r = 0; r < size(); ++r) {
    if (r == shape_.index) continue;
    const auto come = [&](IpcWord word) {
      return has_come_to(words_.word(shape_.index, r, word).load(), flight.tag);
    };
    const bool here = come(IpcWord::ready) || come(IpcWord::done);
    present[size_t(shape_.ranks[size_t(r)])] = here;
    all = all && here;
  }
  if (!all) return deadline_report(w, present, group_.options().timeout);
  return fmt::format(
      "{}: all ranks have arrived, but the call was not done {:.1f} s after this GPU reached it; a rank "
      "hangs",
      describe(w), double(group_.options().timeout.count()) / 1000);
}

// Releases all current and enqueued waits of this rank.
void IpcLink::release() {
  for (int r = 0; r < size(); ++r)
    for (int word = 0; word < kIpcWords; ++word)
      words_.word(shape_.index, r, IpcWord(word)).store(planned_ + kIpcRelease);
}

void IpcLink::abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (given_up_.empty()) given_up_ = reason;
  release();
}

}  // namespace cleave::comm
