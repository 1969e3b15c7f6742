// Order of the work that a thread enqueues on dry streams (Stream::Mode::dry): launches, messages, and events
// between streams. A plan computes from it which work can overlap (plan/timeline.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cleave {

class Stream;

struct WorkEntry {
  enum class Kind : uint8_t { launch, message, record, wait };
  Kind kind = Kind::launch;
  uint8_t op = 0;         // of a message: comm::Collective
  bool repeated = false;  // of a launch: work that recomputation adds
  int stream = 0;         // in order of first use
  int group = -1;         // of a message: index in WorkLog::groups
  int peer = -1;          // of a send or receive: rank of the group
  int64_t event = 0;      // of a record or wait
  double flops = 0;       // of a launch
  double bytes = 0;       // memory traffic of a launch, or bytes that this rank sends
};

// Logs the calling thread's work during its lifetime, at most one per thread.
class WorkLog {
 public:
  struct Group {
    std::string path;  // comm::PlannedGroup
    int rank = 0, size = 1;
  };
  WorkLog();
  ~WorkLog();
  WorkLog(const WorkLog&) = delete;
  WorkLog& operator=(const WorkLog&) = delete;
  static WorkLog* current();

  // Work of a stream in a row becomes one entry.
  void launch(const Stream& stream, double flops, double bytes);
  // `message` has op, peer and bytes.
  void message(const Stream& stream, const Group& group, WorkEntry message);
  int64_t record(const Stream& stream);  // returns the event
  void wait(const Stream& stream, int64_t event);

  std::vector<WorkEntry> entries;
  std::vector<Group> groups;

  // Marks the thread's launches as repeated during its lifetime.
  class Repeats {
   public:
    explicit Repeats(bool repeats = true);
    ~Repeats();
    Repeats(const Repeats&) = delete;
    Repeats& operator=(const Repeats&) = delete;

   private:
    bool before_;
  };

 private:
  int index_of(const Stream& stream);

  std::vector<const Stream*> streams_;
  int64_t events_ = 0;
};

}  // namespace cleave
