// Suggestions for misspelled keys: the nearest name by edit distance over all keys.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cleave::config {

// Returns the number of insertions, deletions, replacements and swaps of neighbors from a to b, or
// most + 1 for more than `most`.
int edit_distance(std::string_view a, std::string_view b, int most);

// Returns the largest number of edits that counts as a typo for a name of this length.
int slip_of(std::string_view name);

struct Suggestion {
  std::string path;          // of the suggested key; empty: none
  bool other_level = false;  // a correct or nearly correct name in the wrong section
};

// `parent` is the section of the name ("" at the top), `paths` are all keys.
Suggestion nearest_key(std::string_view parent, std::string_view name, const std::vector<std::string>& paths);

// Returns the nearest of a few words, or an empty string.
std::string nearest_word(std::string_view word, const std::vector<std::string>& words);

}  // namespace cleave::config
