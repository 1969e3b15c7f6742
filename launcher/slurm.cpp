#include "launcher/slurm.h"

#include <charconv>

#include "core/error.h"

namespace cleave::launcher {
namespace {

constexpr size_t kMostHosts = 100'000;

[[noreturn]] void malformed(const std::string& text) {
  fail(Exit::usage, "SLURM: malformed host list (got '{}')", text);
}

int number(const std::string& digits, const std::string& all) {
  int n = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || n < 0) malformed(all);
  return n;
}

// Splits at commas outside of brackets.
std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words(1);
  int depth = 0;
  for (char c : list) {
    if (c == '[' && ++depth > 1) malformed(list);
    if (c == ']' && --depth < 0) malformed(list);
    if (c == ',' && depth == 0)
      words.emplace_back();
    else
      words.back() += c;
  }
  if (depth != 0) malformed(list);
  return words;
}

// "09-10,020": 09, 10, 020
std::vector<std::string> expand_ranges(const std::string& ranges, const std::string& all) {
  std::vector<std::string> values;
  for (const std::string& range : words_of(ranges)) {
    const size_t dash = range.find('-');
    const std::string low = range.substr(0, dash),
                      high = dash == std::string::npos ? low : range.substr(dash + 1);
    const int first = number(low, all), last = number(high, all);
    if (last < first || size_t(last - first) >= kMostHosts) malformed(all);
    for (int i = first; i <= last; ++i) values.push_back(fmt::format("{:0{}}", i, low.size()));
  }
  return values;
}

void expand(const std::string& prefix, const std::string& rest, const std::string& all,
            std::vector<std::string>& hosts) {
  const size_t open = rest.find('[');
  if (open == std::string::npos) {
    if (prefix.empty() && rest.empty()) malformed(all);
    if (hosts.size() >= kMostHosts) malformed(all);
    hosts.push_back(prefix + rest);
    return;
  }
  const size_t close = rest.find(']', open);
  for (const std::string& value : expand_ranges(rest.substr(open + 1, close - open - 1), all))
    expand(prefix + rest.substr(0, open) + value, rest.substr(close + 1), all, hosts);
}

}  // namespace

std::vector<std::string> expand_node_list(const std::string& list) {
  std::vector<std::string> hosts;
  for (const std::string& word : words_of(list)) expand("", word, list, hosts);
  return hosts;
}

std::vector<int> expand_tasks_per_node(const std::string& text) {
  std::vector<int> tasks;
  if (text.empty()) return tasks;
  for (const std::string& word : words_of(text)) {
    const size_t times = word.find("(x");
    const int count = number(word.substr(0, times), text);
    int repeat = 1;
    if (times != std::string::npos) {
      if (word.back() != ')') malformed(text);
      repeat = number(word.substr(times + 2, word.size() - times - 3), text);
    }
    if (tasks.size() + size_t(repeat) > kMostHosts) malformed(text);
    tasks.insert(tasks.end(), size_t(repeat), count);
  }
  return tasks;
}

}  // namespace cleave::launcher
