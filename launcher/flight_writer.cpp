#include "launcher/flight_writer.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "launcher/raw_json.h"
#include "launcher/thread_stacks.h"

namespace cleave::launcher {
namespace {

// Executable mappings of the process, read when a file is written.
struct Maps {
  static constexpr size_t kMost = 1024, kBytes = 256 << 10;
  struct Row {
    uint64_t begin, end, base;  // base: first mapping of the file
    const char* path;
  };
  std::array<Row, kMost> rows;
  size_t count = 0;
  std::array<char, kBytes> text;
};
Maps& mappings = *new Maps;  // never destroyed, because a signal may come at any time

int64_t now_us() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t(now.tv_sec) * 1'000'000 + now.tv_nsec / 1000;
}

uint64_t hex_number(const char*& at) {
  uint64_t value = 0;
  for (;; ++at) {
    const char c = *at;
    if (c >= '0' && c <= '9')
      value = value * 16 + uint64_t(c - '0');
    else if (c >= 'a' && c <= 'f')
      value = value * 16 + uint64_t(c - 'a' + 10);
    else
      return value;
  }
}

// Lines are "begin-end r-xp offset device inode   path".
void read_maps(Maps& maps) {
  maps.count = 0;
  size_t used = 0;
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  for (ssize_t n = 0; fd >= 0 && used + 1 < Maps::kBytes; used += size_t(n))
    if ((n = read(fd, maps.text.data() + used, Maps::kBytes - 1 - used)) <= 0) break;
  if (fd >= 0) close(fd);
  maps.text[used] = 0;
  uint64_t base = 0;
  const char* module = "";
  for (char* line = maps.text.data(); *line && maps.count < Maps::kMost;) {
    char* const end = std::strchr(line, '\n');
    if (!end) return;  // does not fit
    *end = 0;
    const char* at = line;
    Maps::Row row{};
    row.begin = hex_number(at), row.end = hex_number(++at);
    const bool runs = at[3] == 'x';
    const char* const path = std::strchr(at, '/');
    row.path = path ? path : "";
    if (std::strcmp(row.path, module) != 0) base = row.begin, module = row.path;
    row.base = base;
    if (runs) maps.rows[maps.count++] = row;
    line = end + 1;
  }
}

void write_frame(RawJson& json, const Maps& maps, const void* address) {
  const auto value = uint64_t(reinterpret_cast<uintptr_t>(address));
  const auto end = maps.rows.begin() + ptrdiff_t(maps.count);
  const auto row =
      std::find_if(maps.rows.begin(), end, [&](const auto& r) { return r.begin <= value && value < r.end; });
  json.open('[');
  json.text(row == end ? "" : row->path);
  json.number(row == end ? 0 : int64_t(value - row->base));
  json.number(int64_t(value));
  json.close(']');
}

// Copies the text of a descriptor.
void write_text_of(RawJson& json, int fd) {
  char buffer[1024];
  json.begin_text();
  if (fd >= 0)
    for (ssize_t n = 0; (n = read(fd, buffer, sizeof(buffer))) > 0;) json.more_text({buffer, size_t(n)});
  json.end_text();
}

void write_name_of_thread(RawJson& json, int tid) {
  char path[48] = "/proc/self/task/", digits[16];
  int n = 0;
  do digits[n++] = char('0' + tid % 10);
  while (tid /= 10);
  char* at = path + std::strlen(path);
  while (n > 0) *at++ = digits[--n];
  std::strcpy(at, "/comm");
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  char name[32] = {};
  if (fd >= 0 && read(fd, name, sizeof(name) - 1) > 0 && std::strchr(name, '\n'))
    *std::strchr(name, '\n') = 0;
  if (fd >= 0) close(fd);
  json.text(name);
}

void write_threads(RawJson& json, const void* context) {
  const auto stacks = ThreadStacks::collect(context);
  read_maps(mappings);
  json.open('[');
  for (const ThreadStacks::Stack& stack : stacks) {
    json.open('{');
    json.key("tid"), json.number(stack.tid);
    json.key("name"), write_name_of_thread(json, stack.tid);
    json.key("frames"), json.open('[');
    for (int i = 0; i < stack.frames.load(); ++i) write_frame(json, mappings, stack.addresses[i]);
    json.close(']');
    json.close('}');
  }
  json.close(']');
}

void write_groups(RawJson& json, const comm::FlightRing& ring) {
  json.open('[');
  for (int i = 0; i < comm::FlightRing::kGroups; ++i) {
    const auto* group = ring.group(i);
    if (!group) break;
    json.open('{');
    json.key("name"), json.text(group->name);
    json.key("ranks"), json.open('[');
    for (const int r : group->ranks) json.number(r);
    json.close(']');
    json.key("entered"), json.number(int64_t(group->entered.load()));
    json.key("finished"), json.number(int64_t(group->done.load()));
    json.close('}');
  }
  json.close(']');
}

void write_time(RawJson& json, std::string_view key, int64_t ns) {
  json.key(key);
  ns == 0 ? json.null() : json.number(ns / 1000);
}

void write_calls(RawJson& json, const comm::FlightRing& ring) {
  json.open('[');
  const uint64_t last = ring.made(),
                 first = last < comm::FlightRing::kCalls ? 1 : last - comm::FlightRing::kCalls + 1;
  for (uint64_t ticket = first; ticket <= last; ++ticket) {
    comm::FlightRing::Seen seen;
    if (!ring.read(ticket, seen)) continue;
    const comm::FlightCall& call = seen.call;
    json.open('{');
    json.key("group"), json.number(call.group);
    json.key("number"), json.number(int64_t(call.number));
    json.key("op"), json.text(name_of(call.post.op));
    json.key("type"), json.text(name_of(call.post.dtype));
    json.key("count"), json.number(call.post.numel);
    json.key("by"), json.text(call.post.by == Reduction::max ? "max" : "sum");
    json.key("peer"), json.number(call.post.peer);
    json.key("what"), json.text(call.what);
    json.key("phase"), json.text(call.phase);
    json.key("state"), json.text(seen.finished_ns ? "finished" : "running");
    write_time(json, "queued_us", call.queued_ns);
    write_time(json, "entered_us", seen.entered_ns);
    write_time(json, "finished_us", seen.finished_ns);
    json.close('}');
  }
  json.close(']');
}

}  // namespace

void write_flight_record(int fd, const FlightFacts& f) {
  RawJson json(fd);
  json.open('{');
  json.key("format"), json.number(1);
  json.key("rank"), json.number(f.rank);
  json.key("ranks"), json.number(f.ranks);
  json.key("job"), json.text(f.job);
  json.key("attempt"), json.number(f.attempt);
  json.key("host"), json.text(f.host);
  json.key("pid"), json.number(getpid());
  json.key("reason"), json.text(f.reason);
  json.key("text"), json.text(f.text);
  json.key("time_us"), json.number(now_us());
  json.key("groups"), write_groups(json, *f.ring);
  json.key("calls"), write_calls(json, *f.ring);
  json.flush();  // a crash while stacks are taken leaves the calls
  json.key("threads"), write_threads(json, f.context);
  if (f.python >= 0) lseek(f.python, 0, SEEK_SET);
  json.key("python"), write_text_of(json, f.python);
  if (f.python >= 0 && ftruncate(f.python, 0) == 0) lseek(f.python, 0, SEEK_SET);
  json.close('}');
}

}  // namespace cleave::launcher
