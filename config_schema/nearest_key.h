// What a person probably meant: the nearest name by edit distance, over the whole tree of keys.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cleave::config {

// Insertions, deletions, replacements and swaps of neighbours that turn a into b; more than `most` counts as
// most + 1.
int edit_distance(std::string_view a, std::string_view b, int most);

// How many edits still count as a slip for a name of this length.
int slip_of(std::string_view name);

struct Suggestion {
  std::string path;          // of the key that was probably meant; empty: nothing is near
  bool other_level = false;  // the name is right or nearly so, but it belongs somewhere else
};

// `parent` is the section the name stands in ("" at the top), `paths` are all keys.
Suggestion nearest_key(std::string_view parent, std::string_view name, const std::vector<std::string>& paths);

// The nearest of a few words, or empty.
std::string nearest_word(std::string_view word, const std::vector<std::string>& words);

}  // namespace cleave::config
