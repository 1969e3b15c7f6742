// Writes the flight record of this rank, its last collectives and the stacks of its threads, to one file:
// when the job loses a rank, on SIGQUIT (the process continues), and when a signal such as SIGSEGV or an
// uncaught C++ exception ends the process. docs/failures.md describes the file.
#pragma once
#include <memory>
#include <string>

#include "comm/flight_ring.h"

namespace cleave::launcher {

// Start of the line that a rank prints on stderr after it wrote its file; the path follows.
inline constexpr std::string_view kFlightLine = "flight record: ";

class FlightFile {
 public:
  struct Rank {
    int rank = 0, ranks = 1, attempt = 0;
    std::string job;  // equal on all ranks of a job; may be empty
  };

  // Installs the handlers of the process. Null if it has such an object. The ring outlives the object.
  static std::unique_ptr<FlightFile> install(const comm::FlightRing& ring, const Rank& rank);
  // Restores the earlier handlers.
  ~FlightFile();
  FlightFile(const FlightFile&) = delete;
  FlightFile& operator=(const FlightFile&) = delete;

  // Folder of the file, which the first write creates. CLEAVE_FLIGHT overrides it, and its value off disables
  // the files.
  void write_into(const std::string& folder);
  // Call on the thread that Python runs on, after its faulthandler was enabled. Gives handlers on this thread
  // a stack of their size: faulthandler's has about 16 KiB, and handlers that follow it run there. From now
  // on, the current handler of SIGQUIT counts as one that writes the file.
  static void settle();
  // Writes the file because of this reason, as SIGQUIT does, unless a lost rank was reported before.
  // Thread-safe.
  void lost(const std::string& reason);
  bool has_lost() const;    // lost() was called
  bool takes_quit() const;  // false: the program had a handler of SIGQUIT, which stays
  // Descriptor for the Python stacks of this process, which a handler that is called before writes.
  int python_stacks() const;

 private:
  FlightFile() = default;
};

}  // namespace cleave::launcher
