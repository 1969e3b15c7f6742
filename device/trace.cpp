#include "device/trace.h"

#include <ctime>

#include <chrono>
#include <filesystem>

namespace cleave {
namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

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

}  // namespace

Trace::Trace(const std::string& path, int rank, int64_t steps)
    : file_(path), path_(path), rank_(rank), steps_left_(steps), on_(steps > 0) {
  require(file_.good(), Exit::usage, "--trace: cannot write {}", path);
  file_ << "[\n"
        << fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"rank {}"}}}})", rank,
                       rank);
}

std::string Trace::file_of(const std::string& path, int rank, int ranks) {
  if (ranks == 1) return path;
  const std::filesystem::path p(path);
  return p.parent_path() / fmt::format("{}.{}{}", p.stem().string(), rank,
                                       p.has_extension() ? p.extension().string() : ".json");
}

// A file that was cut off by a killed run lacks the bracket, which viewers do not mind.
Trace::~Trace() {
  if (file_.is_open()) file_ << "\n]\n";
}

void Trace::name(const Stream& stream, const std::string& track) {
  tracks_.emplace_back(&stream, track);
  if (file_.is_open())
    file_ << fmt::format(
        ",\n"
        R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})",
        rank_, tracks_.size(), json_string(track));
}

TraceEvent* Trace::begin(const Stream& stream, TraceEvent event) {
  for (size_t i = 0; i < tracks_.size(); ++i)
    if (tracks_[i].first == &stream) event.track = int(i) + 1;
  return &events_.emplace_back(std::move(event));
}

void Trace::end_step() {
  if (!file_.is_open() || !on_) return;
  for (const TraceEvent& e : events_) {
    file_ << fmt::format(R"(,
{{"ph":"X","pid":{},"tid":{},"cat":"{}","name":{},"ts":{:.1f},"dur":{:.1f},"args":{{"cpu_us":{:.1f})",
                         rank_, e.track, e.category, json_string(e.name), e.begin_us, e.end_us - e.begin_us,
                         e.cpu_us);
    if (e.micro >= 0) file_ << fmt::format(R"(,"micro":{},"chunk":{})", e.micro, e.chunk);
    file_ << "}}";
  }
  events_.clear();
  file_.flush();
  require(file_.good(), Exit::usage, "--trace: writing {} failed; is the disk full?", path_);
  on_ = --steps_left_ > 0;
}

TraceSpan::TraceSpan(Trace* trace, Stream& stream, const char* category, std::string_view name, int micro,
                     int chunk)
    : stream_(stream) {
  if (!trace || !trace->on()) return;
  event_ =
      trace->begin(stream, {.name = std::string(name), .category = category, .micro = micro, .chunk = chunk});
  stream_.enqueue([e = event_] { e->begin_us = now_us(), e->cpu_us = -thread_cpu_us(); });
}

TraceSpan::~TraceSpan() {
  if (!event_) return;
  try {
    stream_.enqueue([e = event_] { e->end_us = now_us(), e->cpu_us += thread_cpu_us(); });
  } catch (...) {  // the step was given up, and with it its events
  }
}

}  // namespace cleave
