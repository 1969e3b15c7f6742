// What the ranks of a job say, line by line, and the last error of each: the reason why a job ended is its
// last line, whatever the others say about it.
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

  // One line with its end; returns it with the rank's prefix. Nothing for an error or for kStoppedEarly that
  // another rank has said in the same words, as where all find the same file missing, and for the indented
  // lines that follow it.
  // `name` is the rank's number where `rank` is its place on this host.
  std::optional<std::string> take(size_t rank, std::string_view line, bool is_error, int name = -1);

  // The rank's last error, without "error: "; of a program that does not mark errors, its last line on
  // stderr. Empty where there is none, or where `exit` says that somebody killed the rank and it had said no
  // error: what it said before is then not why.
  std::string error_of(size_t rank, int exit) const;
  // The one of these ranks, with their exit codes, that ended as `cause` did and said why; else `cause`.
  int who_said(int cause, const std::vector<std::pair<int, int>>& rank_and_exit) const;
  // Whether a rank has said kStoppedEarly.
  bool stopped_early() const { return errors_.contains(kStoppedEarly); }

 private:
  struct Last {
    std::string text;
    bool marked = false;    // "error: ..."
    bool going_on = false;  // no line of the rank since but indented ones, which belong to it
    bool said_by_another = false;
  };
  std::vector<Last> last_;
  std::set<std::string, std::less<>> errors_;
};

}  // namespace cleave::launcher
