// Output lines of a job's ranks, and the last error of each rank: the reason for a job's end is the last line
// of the rank that caused it.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::launcher {

// A rank's last line if a signal ends it before the ranks have met, so that nothing can be saved.
inline constexpr std::string_view kStoppedEarly = "stopped on request before the training started";

class RankLines {
 public:
  explicit RankLines(int ranks) : last_(size_t(ranks)) {}

  // Takes one line with its newline and returns it with the rank's prefix. Returns nothing for an error or a
  // kStoppedEarly that another rank has printed in the same words, such as a missing file, and for the
  // indented lines that follow it. `name` is the rank's number if `rank` is its index on this host.
  std::optional<std::string> take(size_t rank, std::string_view line, bool is_error, int name = -1);

  // The rank's last error without "error: "; else the exception of its last Python traceback, with the line
  // after one that ends with a colon, unless more than 60 lines of stderr follow it; else its last line on
  // stderr. Empty if there is none, or if `exit` shows that a signal killed the rank before it printed an
  // error: its earlier output is not the reason.
  std::string error_of(size_t rank, int exit) const;
  // Among these ranks with their exit codes, one that ended with the same code as `cause` and printed an
  // error; else `cause`.
  int who_said(int cause, const std::vector<std::pair<int, int>>& rank_and_exit) const;
  // A rank may repeat the error of another ("rank 2: ...", also after other words with a colon): returns the
  // number of that one, -1 if the error is its own.
  int origin_of(size_t rank) const;
  // Whether a rank has said kStoppedEarly.
  bool stopped_early() const { return errors_.contains(kStoppedEarly); }

 private:
  struct Last {
    std::string text;
    bool marked = false;  // "error: ..."
    int raised = 0;       // the exception of a traceback: number of lines that may follow it
    bool in_traceback = false;
    bool going_on = false;  // only indented lines since, which belong to the error
    bool said_by_another = false;
  };
  static bool take_traceback(Last& last, std::string_view text);
  std::vector<Last> last_;
  std::set<std::string, std::less<>> errors_;
};

}  // namespace cleave::launcher
