// Lines that travel between launchers in pieces: srun mixes what several hosts write where their lines are
// longer than 1 KiB.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace cleave::launcher {

// "[12] text\n" as lines of at most kLongestPiece bytes, each with the prefix; all but the last end with
// kMoreFollows. Other lines as they are.
inline constexpr size_t kLongestPiece = 1000;
inline constexpr char kMoreFollows = '\x1d';
std::string in_pieces(std::string_view line);

// "[12] text": the rank, and where the text begins; -1 for a line of nobody's.
std::pair<int, size_t> rank_of_line(std::string_view line, int world);

// What one stream of all ranks says, put together again.
class Pieces {
 public:
  // A piece without its prefix, with its line end. The whole line, once its last piece is there.
  std::optional<std::string> take(int rank, std::string_view piece);

 private:
  std::map<int, std::string> begun_;
};

}  // namespace cleave::launcher
