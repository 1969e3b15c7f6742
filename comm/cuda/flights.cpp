#include "comm/cuda/flights.h"

#include <utility>

#include "device/cuda/check.h"

namespace cleave::comm {
namespace {

// Whether the GPU has passed the event. That it has not is no error, but CUDA would report it after the next
// kernel's launch.
cudaError_t query(cudaEvent_t event) {
  const cudaError_t result = cudaEventQuery(event);
  if (result == cudaErrorNotReady) cudaGetLastError();
  return result;
}

}  // namespace

Flights::~Flights() {
  for (const Flight& f : landed_) cudaEventDestroy(f.begin), cudaEventDestroy(f.end);
  for (const Flight& f : flights_) cudaEventDestroy(f.begin), cudaEventDestroy(f.end);
}

void Flights::begin(const Waiting& w, cudaStream_t stream, uint32_t tag) {
  land_finished();
  Flight f;
  if (landed_.empty()) {
    cuda_check(cudaEventCreateWithFlags(&f.begin, cudaEventDisableTiming), "cudaEventCreate", device_);
    cuda_check(cudaEventCreateWithFlags(&f.end, cudaEventDisableTiming), "cudaEventCreate", device_);
  } else {
    f = std::move(landed_.back());
    landed_.pop_back();
  }
  f.number = w.number, f.what = w.what, f.post = w.post, f.tag = tag, f.growing = true, f.since.reset();
  cuda_check(cudaEventRecord(f.begin, stream), "cudaEventRecord", device_);
  flights_.push_back(std::move(f));
}

void Flights::end(cudaStream_t stream) {
  cuda_check(cudaEventRecord(flights_.back().end, stream), "cudaEventRecord", device_);
  flights_.back().growing = false;
}

// The calls of one link are done in their order.
void Flights::land_finished() {
  while (!flights_.empty() && !flights_.front().growing && query(flights_.front().end) == cudaSuccess) {
    landed_.push_back(std::move(flights_.front()));
    flights_.pop_front();
  }
}

bool Flights::all_done() {
  land_finished();
  return flights_.empty();
}

Waiting Flights::waiting(const Flight& f) const {
  return {group_.name(), group_.ranks(), rank_, f.number, f.what, f.post};
}

std::string Flights::report(const std::string& why) const {
  if (flights_.empty()) return fmt::format("group '{}': {}", group_.name(), why);
  return fmt::format("{}: {}", describe(waiting(flights_.front())), why);
}

std::string Flights::trouble(const std::function<std::string(const Waiting&, const Flight&)>& late) {
  if (all_done()) return {};
  Flight& first = flights_.front();
  const cudaError_t begun = query(first.begin), done = first.growing ? cudaErrorNotReady : query(first.end);
  if (done != cudaSuccess && done != cudaErrorNotReady)
    return report(fmt::format("cuda:{} failed: {}", device_, cudaGetErrorString(done)));
  if (begun != cudaSuccess || done == cudaSuccess) return {};
  if (!first.since) first.since = Clock::now();
  if (Clock::now() - *first.since < group_.options().timeout) return {};
  return late(waiting(first), first);
}

}  // namespace cleave::comm
