#include "runtime/generation/texts.h"

#include <algorithm>
#include <set>

namespace cleave::runtime {

void Texts::check(const std::vector<TextPart>& parts) const {
  std::set<int64_t> seen;
  CHECK(!parts.empty(), "extend() was given no part of a text");
  for (const TextPart& p : parts) {
    CHECK(0 <= p.text && p.text < count(), "text {} of {} (EngineOptions::texts)", p.text, count());
    CHECK(seen.insert(p.text).second, "text {} has two parts", p.text);
    const int64_t has = lengths_[size_t(p.text)], end = p.begin + int64_t(p.tokens.size());
    CHECK(0 <= p.begin && p.begin <= has && p.begin < end && end <= limits_.positions,
          "positions {} to {} of text {}, which has {} of at most {}", p.begin, end, p.text, has,
          limits_.positions);
  }
}

// Pads the pass to at least one row, and to equal parts for ranks that cut rows.
void Texts::pad(PassOfTexts& pass) const {
  TextPass& rows = pass.rows;
  while (rows.rows() == 0 || rows.rows() % limits_.multiple != 0)
    rows.tokens.push_back(0), rows.texts.push_back(-1), rows.positions.push_back(0);
}

// Runs parts with several tokens in separate passes: the bits of a product's row depend on the number of
// rows, and a text's result must not depend on other texts.
std::vector<std::vector<PassOfTexts>> Texts::extend(const std::vector<TextPart>& parts) {
  check(parts);
  std::vector<std::vector<PassOfTexts>> by_sharer(size_t(limits_.sharers));
  std::vector<PassOfTexts> single(by_sharer.size());
  const auto close = [](std::vector<PassOfTexts>& passes, PassOfTexts& pass, int64_t wanted) {
    pass.wanted = {pass.rows.rows() - wanted, pass.rows.rows()};
    passes.push_back(std::exchange(pass, {}));
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    const TextPart& part = parts[i];
    const auto sharer = size_t(part.text % limits_.sharers);
    const bool alone = part.tokens.size() > 1;
    PassOfTexts own, &pass = alone ? own : single[sharer];
    for (size_t t = 0; t < part.tokens.size(); ++t) {
      pass.rows.tokens.push_back(part.tokens[t]);
      pass.rows.texts.push_back(int32_t(part.text / limits_.sharers));
      pass.rows.positions.push_back(int32_t(part.begin + int64_t(t)));
      const bool last = t + 1 == part.tokens.size();
      if (last) pass.parts.push_back(i);
      if (pass.rows.rows() == limits_.most_rows || (alone && last))
        close(by_sharer[sharer], pass, int64_t(pass.parts.size()));
    }
    lengths_[size_t(part.text)] = part.begin + int64_t(part.tokens.size());
  }
  size_t most = 0;
  for (size_t p = 0; p < by_sharer.size(); ++p) {
    if (single[p].rows.rows() > 0) close(by_sharer[p], single[p], int64_t(single[p].parts.size()));
    most = std::max(most, by_sharer[p].size());
  }
  for (std::vector<PassOfTexts>& passes : by_sharer) {
    passes.resize(most);
    for (PassOfTexts& pass : passes) pad(pass);
  }
  return by_sharer;
}

}  // namespace cleave::runtime
