#include "config_schema/nearest_key.h"

#include <algorithm>
#include <cstdlib>

namespace cleave {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return out;
}

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
  if (std::abs(int(a.size()) - int(b.size())) > most) return most + 1;
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = int(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = int(i);
    int least = row[0];
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
      least = std::min(least, row[j]);
    }
    if (least > most) return most + 1;
    std::swap(before, above);
    std::swap(above, row);
  }
  return std::min(above[b.size()], most + 1);
}

int slip_of(std::string_view name) { return std::clamp(int(name.size()) / 3, 1, 3); }

Suggestion nearest_key(std::string_view parent, std::string_view name,
                       const std::vector<std::string>& paths) {
  const int most = slip_of(name);
  const std::string wanted = lower(name);
  int best = 2 * most + 2;
  Suggestion suggestion;
  for (const std::string& path : paths) {
    const Split key = split(path);
    if (key.name.find('<') != std::string_view::npos) continue;
    const bool here = key.parent == parent;
    // A slip in this section is likelier than the same slip elsewhere; the exact name elsewhere beats a slip
    // here.
    const int distance = edit_distance(wanted, lower(key.name), most);
    const int cost = 2 * distance + (here ? 0 : 1);
    if (distance > most || (!here && distance > (most + 1) / 2) || cost >= best) continue;
    best = cost;
    suggestion = {path, !here};
  }
  return suggestion;
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& words) {
  int best = slip_of(word) + 1;
  std::string nearest;
  for (const std::string& candidate : words) {
    const int distance = edit_distance(lower(word), lower(candidate), slip_of(word));
    if (distance < best) best = distance, nearest = candidate;
  }
  return nearest;
}

}  // namespace cleave
