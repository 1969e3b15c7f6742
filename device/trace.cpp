#include "device/trace.h"

#include <ctime>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "core/warnings.h"
#include "device/tool_ranges.h"

namespace cleave {
namespace {

double thread_cpu_us() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) * 1e6 + double(t.tv_nsec) / 1e3;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + '"';
}

// The stream of the event writes the end time.
bool is_done(const TraceEvent& e) {
  return std::atomic_ref<double>(const_cast<double&>(e.end_us)).load(std::memory_order_acquire) != 0;
}

}  // namespace

Trace::Trace(const std::string& path, int rank, int64_t steps, double clock_us)
    : file_(path), path_(path), rank_(rank), steps_left_(steps), clock_us_(clock_us) {
  require(file_.good(), Exit::usage, "--trace: cannot write {}", path);
  file_ << "[\n"
        << fmt::format(
               R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"rank {}","clock_us":{:.1f}}}}})",
               rank, rank, clock_us);
}

double Trace::now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string Trace::file_of(const std::string& path, int rank, int ranks) {
  if (ranks == 1) return path;
  const std::filesystem::path p(path);
  return p.parent_path() / fmt::format("{}.{}{}", p.stem().string(), rank,
                                       p.has_extension() ? p.extension().string() : ".json");
}

// The file of a killed run lacks the bracket; viewers accept this.
Trace::~Trace() {
  if (!file_.is_open()) return;
  for (const TraceEvent& e : events_)
    if (e.filed && is_done(e)) write(e);
  file_ << "\n]\n";
}

void Trace::name(const Stream& stream, const std::string& track, const char* category) {
  tracks_.push_back({&stream, category, track});
}

const std::string& Trace::track_of(const TraceEvent& event) const {
  static const std::string none;
  return event.track > 0 ? tracks_[size_t(event.track) - 1].name : none;
}

TraceEvent* Trace::begin(TraceEvent event) {
  bool exact = false;  // the track is for this category only
  for (size_t i = 0; i < tracks_.size() && !exact; ++i) {
    const Track& t = tracks_[i];
    exact = t.stream == event.stream && t.category == event.category;
    if (exact || (t.stream == event.stream && t.category.empty())) event.track = int(i) + 1;
  }
  event.filed = steps_left_ > 0;
  return &events_.emplace_back(std::move(event));
}

void Trace::write(const TraceEvent& e) {
  if (Track* t = e.track > 0 ? &tracks_[size_t(e.track) - 1] : nullptr; t && !t->announced) {
    file_ << fmt::format(
        ",\n"
        R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})",
        rank_, e.track, json_string(t->name));
    t->announced = true;
  }
  file_ << fmt::format(R"(,
{{"ph":"X","pid":{},"tid":{},"cat":"{}","name":{},"ts":{:.1f},"dur":{:.1f},"args":{{"cpu_us":{:.1f})",
                       rank_, e.track, e.category, json_string(e.name), e.begin_us + clock_us_,
                       e.end_us - e.begin_us, e.cpu_us);
  if (e.micro >= 0) file_ << fmt::format(R"(,"micro":{},"chunk":{})", e.micro, e.chunk);
  file_ << "}}";
}

void Trace::end_step() {
  if (keeps_) return;
  for (; !events_.empty() && is_done(events_.front()); events_.pop_front()) {
    if (events_.front().filed) write(events_.front());
    if (listener_) listener_(events_.front());
  }
  if (steps_left_ == 0) return;
  file_.flush();
  --steps_left_;
  if (file_.good()) return;
  // A tracing failure must not end the training.
  warn("--trace: writing {} failed, the rest is not traced; is the disk full?", path_);
  steps_left_ = 0;
  file_.close();
}

bool TraceSpan::wanted(const Trace* trace) { return (trace && trace->on()) || a_tool_listens(); }

TraceSpan::TraceSpan(Trace* trace, Stream& stream, const char* category, std::string_view name, int micro,
                     int chunk)
    : TraceSpan(
          trace, stream,
          wanted(trace)
              ? TraceEvent{.name = std::string(name), .category = category, .micro = micro, .chunk = chunk}
              : TraceEvent{}) {}

TraceSpan::TraceSpan(Trace* trace, Stream& stream, TraceEvent event) : stream_(stream) {
  if (a_tool_listens() && !stream.discards() && !stream.dry()) {
    begin_tool_range(event.category, event.name.empty() ? event.op : event.name);
    named_ = true;
  }
  if (!trace || !trace->on()) return;
  event.stream = &stream;
  event_ = trace->begin(std::move(event));
  stream_.enqueue([e = event_] { e->begin_us = Trace::now_us(), e->cpu_us = -thread_cpu_us(); });
}

TraceSpan::~TraceSpan() {
  if (named_) end_tool_range();
  if (!event_) return;
  try {
    stream_.enqueue([e = event_] {
      e->cpu_us += thread_cpu_us();
      std::atomic_ref<double>(e->end_us).store(Trace::now_us(), std::memory_order_release);
    });
  } catch (...) {  // the step was abandoned with its events
  }
}

}  // namespace cleave
