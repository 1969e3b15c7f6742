#include "kernels/tally.h"

#include <algorithm>

#include "core/error.h"
#include "device/work_log.h"

namespace cleave::kernels {
namespace {

thread_local Tally* counting = nullptr;

}  // namespace

Tally::Tally() {
  CHECK(!counting, "a tally began within another of the same thread");
  counting = this;
}

Tally::~Tally() { counting = nullptr; }

Tally* Tally::current() { return counting; }

void Tally::add(const Work& launch) {
  if (WorkLog* log = WorkLog::current(); log && stream_) log->launch(*stream_, launch.flops, launch.bytes);
  const auto known = std::ranges::find_if(work_, [&](const Work& w) {
    return w.op == launch.op && w.type == launch.type && w.variant == launch.variant;
  });
  if (known == work_.end()) return work_.push_back(launch);
  known->launches += launch.launches;
  known->flops += launch.flops;
  known->bytes += launch.bytes;
  known->least += launch.least;
}

}  // namespace cleave::kernels
