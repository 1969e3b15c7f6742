#include "launcher/rank_lines.h"

#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <charconv>

namespace cleave::launcher {
namespace {

constexpr std::string_view kError = "error: ";

// Removes the rank from "rank 12: text".
std::string_view without_rank(std::string_view text) {
  constexpr std::string_view kRank = "rank ";
  if (!text.starts_with(kRank)) return text;
  const size_t digits = text.find_first_not_of("0123456789", kRank.size());
  return digits != text.npos && digits > kRank.size() && text.substr(digits).starts_with(": ")
             ? text.substr(digits + 2)
             : text;
}

// Removes the rank that PyTorch puts before the lines of a traceback, "[rank12]: text".
std::string_view without_mark_of_torch(std::string_view text) {
  const size_t end = text.starts_with("[rank") ? text.find("]: ") : text.npos;
  return end == text.npos ? text : text.substr(end + 3);
}

}  // namespace

std::optional<std::string> RankLines::take(size_t rank, std::string_view line, bool is_error, int name) {
  std::string_view text = line.substr(0, line.find_last_not_of("\r\n") + 1);
  const bool marked = is_error && text.starts_with(kError);
  if (marked) text.remove_prefix(kError.size());
  if (is_error && text == kStoppedEarly && !errors_.emplace(text).second) return {};
  Last& last = last_[rank];
  last.going_on = last.going_on && is_error && text.starts_with(' ');
  if (is_error && !text.empty() && !marked && !last.marked &&
      take_traceback(last, without_mark_of_torch(text)))
    return fmt::format("[{}] {}", name < 0 ? int(rank) : name, line);
  if (!last.going_on && is_error && !text.empty() && (marked || !last.marked))
    last = {.text = std::string(text),
            .marked = marked,
            .going_on = marked,
            .said_by_another = marked && !errors_.emplace(without_rank(text)).second};
  if (last.going_on && last.said_by_another) return {};
  return fmt::format("[{}] {}", name < 0 ? int(rank) : name, line);
}

// Returns true if the line belongs to a traceback or its exception.
bool RankLines::take_traceback(Last& last, std::string_view text) {
  constexpr int kMessageLines = 60;  // an exception may have a table
  if (text == "Traceback (most recent call last):") return last.in_traceback = true;
  if (!last.in_traceback) {
    if (last.raised == kMessageLines && last.text.ends_with(':')) last.text += fmt::format(" {}", text);
    return last.raised > 0 && --last.raised > 0;
  }
  if (!text.starts_with(' ')) last = {.text = std::string(text), .raised = kMessageLines};
  return true;
}

namespace {

// Advice for a missing Python module, the most common failure of a script's first start; empty for other
// errors.
std::string advice_for(const std::string& error) {
  constexpr std::string_view kMissing = "ModuleNotFoundError: No module named ";
  if (!error.starts_with(kMissing)) return {};
  const std::string module = error.substr(kMissing.size());
  if (module == "'cleave'" || module == "'deepspeed'")
    return "; add the folder python of Cleave's source tree to PYTHONPATH, or install the package with pip";
  return "; install it for the Python that runs the script";
}

}  // namespace

std::string RankLines::error_of(size_t rank, int exit) const {
  const bool killed = exit == 128 + SIGKILL || exit == 128 + SIGTERM || exit == 128 + SIGINT;
  const Last& last = last_[rank];
  if (killed && !last.marked) return {};
  const std::string error(without_rank(last.text));
  return error + advice_for(error);
}

int RankLines::origin_of(size_t rank) const {
  for (std::string_view text = last_[rank].text;;) {
    if (without_rank(text) != text) {
      int origin = -1;
      std::from_chars(text.data() + std::string_view("rank ").size(), text.data() + text.size(), origin);
      return origin;
    }
    const size_t colon = text.find(": ");
    if (colon == text.npos) return -1;
    text.remove_prefix(colon + 2);
  }
}

int RankLines::who_said(int cause, const std::vector<std::pair<int, int>>& rank_and_exit) const {
  const auto exit_of = [&](int rank) {
    return std::find_if(rank_and_exit.begin(), rank_and_exit.end(),
                        [&](const auto& e) { return e.first == rank; });
  };
  if (cause < 0 || last_[size_t(cause)].marked) return cause;
  for (const auto& [rank, exit] : rank_and_exit)
    if (exit == exit_of(cause)->second && last_[size_t(rank)].marked) return rank;
  return cause;
}

}  // namespace cleave::launcher
