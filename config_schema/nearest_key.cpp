#include "config_schema/nearest_key.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

namespace cleave::config {
namespace {

constexpr size_t kLongestName = 128;

char small(char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; }

struct Split {
  std::string_view parent, name;
};

Split split(std::string_view path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b, int most) {
  if (std::abs(int(a.size()) - int(b.size())) > most || b.size() > kLongestName) return most + 1;
  std::array<std::array<int, kLongestName + 1>, 3> rows;
  for (size_t j = 0; j <= b.size(); ++j) rows[0][j] = int(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    auto &row = rows[i % 3], &above = rows[(i + 2) % 3], &before = rows[(i + 1) % 3];
    row[0] = int(i);
    int least = row[0];
    const auto same = [&](size_t x, size_t y) { return small(a[x]) == small(b[y]); };
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + !same(i - 1, j - 1)});
      if (i > 1 && j > 1 && same(i - 1, j - 2) && same(i - 2, j - 1))
        row[j] = std::min(row[j], before[j - 2] + 1);
      least = std::min(least, row[j]);
    }
    if (least > most) return most + 1;
  }
  return std::min(rows[a.size() % 3][b.size()], most + 1);
}

int slip_of(std::string_view name) { return std::clamp(int(name.size()) / 3, 1, 3); }

namespace {

char small_at(std::string_view s, size_t i) { return i < s.size() ? small(s[i]) : '\0'; }

// Returns the edit distance of a typo. A prefix costs as much as the largest typo. Empty if the
// name is too different.
std::optional<int> distance_to(std::string_view word, std::string_view name) {
  const int most = slip_of(word), distance = edit_distance(word, name, most);
  if (distance <= most) return distance;
  constexpr size_t kBeginning = 8;
  size_t same = 0;
  while (same < word.size() && small(word[same]) == small_at(name, same)) ++same;
  if (same == word.size() && same >= kBeginning) return most;
  return std::nullopt;
}

}  // namespace

Suggestion nearest_key(std::string_view parent, std::string_view name,
                       const std::vector<std::string>& paths) {
  int best = 2 * slip_of(name) + 2;
  Suggestion suggestion;
  for (const std::string& path : paths) {
    const Split key = split(path);
    if (key.name.find('<') != std::string_view::npos) continue;
    const bool here = key.parent == parent;
    const std::optional<int> distance = distance_to(name, key.name);
    if (!distance) continue;
    // A typo in this section is more likely than one elsewhere; an exact name elsewhere is more
    // likely than a typo here. Short names elsewhere match only exactly, because near ones are
    // coincidences.
    constexpr size_t kShort = 5;
    const int most_there = name.size() < kShort ? 0 : (slip_of(name) + 1) / 2;
    const int cost = 2 * *distance + (here ? 0 : 1);
    if ((!here && *distance > most_there) || cost >= best) continue;
    best = cost;
    suggestion = {path, !here};
  }
  return suggestion;
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& words) {
  const Suggestion near = nearest_key("", word, words);
  return near.path;
}

}  // namespace cleave::config
