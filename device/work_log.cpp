#include "device/work_log.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace cleave {
namespace {

thread_local WorkLog* logging = nullptr;
thread_local bool repeating = false;

}  // namespace

WorkLog::WorkLog() {
  CHECK(!logging, "a work log began within another of the same thread");
  logging = this;
}

WorkLog::~WorkLog() { logging = nullptr; }

WorkLog* WorkLog::current() { return logging; }

int WorkLog::index_of(const Stream& stream) {
  const auto known = std::ranges::find(streams_, &stream);
  if (known == streams_.end()) return streams_.push_back(&stream), int(streams_.size()) - 1;
  return int(known - streams_.begin());
}

void WorkLog::launch(const Stream& stream, double flops, double bytes) {
  const int at = index_of(stream);
  if (!entries.empty()) {
    WorkEntry& last = entries.back();
    if (last.kind == WorkEntry::Kind::launch && last.stream == at && last.repeated == repeating) {
      last.flops += flops, last.bytes += bytes;
      return;
    }
  }
  entries.push_back({.repeated = repeating, .stream = at, .flops = flops, .bytes = bytes});
}

void WorkLog::message(const Stream& stream, const Group& group, WorkEntry message) {
  const auto known = std::ranges::find(groups, group.path, &Group::path);
  message.kind = WorkEntry::Kind::message;
  message.stream = index_of(stream), message.group = int(known - groups.begin());
  if (known == groups.end()) groups.push_back(group);
  entries.push_back(message);
}

int64_t WorkLog::record(const Stream& stream) {
  entries.push_back({.kind = WorkEntry::Kind::record, .stream = index_of(stream), .event = ++events_});
  return events_;
}

void WorkLog::wait(const Stream& stream, int64_t event) {
  entries.push_back({.kind = WorkEntry::Kind::wait, .stream = index_of(stream), .event = event});
}

WorkLog::Repeats::Repeats(bool repeats) : before_(std::exchange(repeating, repeating || repeats)) {}
WorkLog::Repeats::~Repeats() { repeating = before_; }

}  // namespace cleave
