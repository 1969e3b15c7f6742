#include "launcher/pieces.h"

#include <charconv>

namespace cleave::launcher {

std::string in_pieces(std::string_view line) {
  constexpr std::string_view kPrefixEnd = "] ";
  const size_t end = line.starts_with('[') ? line.find(kPrefixEnd) : line.npos;
  if (line.size() <= kLongestPiece || end > 20) return std::string(line);
  const std::string_view prefix = line.substr(0, end + kPrefixEnd.size());
  line.remove_prefix(prefix.size());
  const size_t room = kLongestPiece - prefix.size() - 2;  // minus the mark and the newline
  std::string pieces;
  for (; line.size() > room; line.remove_prefix(room)) {
    pieces += prefix;
    pieces += line.substr(0, room);
    pieces += kMoreFollows;
    pieces += '\n';
  }
  pieces += prefix;
  return pieces += line;
}

std::pair<int, size_t> rank_of_line(std::string_view line, int world) {
  int rank = -1;
  const auto [end, error] =
      std::from_chars(line.data() + (line.empty() ? 0 : 1), line.data() + line.size(), rank);
  const size_t at = size_t(end - line.data());
  const bool good = line.starts_with('[') && error == std::errc() && rank >= 0 && rank < world &&
                    line.substr(at).starts_with("] ");
  return good ? std::pair(rank, at + 2) : std::pair(-1, size_t(0));
}

std::optional<std::string> Pieces::take(int rank, std::string_view piece) {
  constexpr std::string_view kMark = "\x1d\n";
  static_assert(kMark[0] == kMoreFollows);
  const bool last = !piece.ends_with(kMark);
  const auto begun = begun_.find(rank);
  if (last && begun == begun_.end()) return std::string(piece);
  std::string& text = begun == begun_.end() ? begun_[rank] : begun->second;
  text += last ? piece : piece.substr(0, piece.size() - kMark.size());
  if (!last) return {};
  std::string whole = std::move(text);
  begun_.erase(rank);
  return whole;
}

}  // namespace cleave::launcher
