// Splits lines between launchers into pieces, because srun interleaves lines of several hosts if they are
// longer than 1 KiB.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace cleave::launcher {

// Splits "[12] text\n" into lines of at most kLongestPiece bytes, each with the prefix; all but the last end
// with kMoreFollows. Returns other lines unchanged.
inline constexpr size_t kLongestPiece = 1000;
inline constexpr char kMoreFollows = '\x1d';
std::string in_pieces(std::string_view line);

// Rank of a line "[12] text" and the offset of its text; -1 for a line without a rank.
std::pair<int, size_t> rank_of_line(std::string_view line, int world);

// Reassembles one output stream of all ranks.
class Pieces {
 public:
  // Takes a piece without prefix, with its newline. Returns the complete line after its last piece.
  std::optional<std::string> take(int rank, std::string_view piece);

 private:
  std::map<int, std::string> begun_;
};

}  // namespace cleave::launcher
