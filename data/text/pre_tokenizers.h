// Cuts a text into pre-tokens, which merges do not cross: applies expressions in sequence, each to the pieces
// of the previous one.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/expression.h"

namespace cleave::text {

class PreTokenizers {
 public:
  struct Cut {
    std::optional<Expression> expression;  // none: does not cut
    bool keep_matches = true, keep_between = true;
    bool blank_before = false;  // adds a blank to a piece that does not start with one
    bool at_lines = false;      // see Tokenizer::can_cut_at_lines
  };
  // Cuts at matches of an expression of tokenizer.json. Throws Error(data), which begins with `where`.
  static Cut at(std::string_view expression, const std::string& where);
  // Cut of ByteLevel: GPT-2's expression, or none.
  static Cut byte_level(bool has_expression, const std::string& where);

  void add(Cut cut) { cuts_.push_back(std::move(cut)); }
  // True if these cuts allow to cut a text after a line end (Tokenizer::can_cut_at_lines).
  bool cut_at_lines() const;

  // State of one thread.
  class Work {
   public:
    explicit Work(const PreTokenizers& all);

   private:
    friend class PreTokenizers;
    std::vector<std::optional<Expression::Matcher>> matchers_;  // by cut
    std::vector<std::string> with_blank_;
  };
  // Calls use(pre-token) in order. A pre-token is valid until the next one.
  template <class Use>
  void each(std::string_view text, Work& work, const Use& use) const {
    cut(0, text, work, use);
  }

 private:
  template <class Use>
  void cut(size_t stage, std::string_view piece, Work& work, const Use& use) const {
    if (piece.empty()) return;
    if (stage == cuts_.size()) return use(piece);
    const Cut& c = cuts_[stage];
    if (c.blank_before && !piece.starts_with(' '))
      piece = work.with_blank_[stage].assign(1, ' ').append(piece);
    if (!c.expression) return cut(stage + 1, piece, work, use);
    size_t done = 0, begin = 0, end = 0;
    while (done < piece.size() && work.matchers_[stage]->next(piece, done, begin, end)) {
      if (c.keep_between && begin > done) cut(stage + 1, piece.substr(done, begin - done), work, use);
      if (c.keep_matches) cut(stage + 1, piece.substr(begin, end - begin), work, use);
      done = end;
    }
    if (c.keep_between) cut(stage + 1, piece.substr(done), work, use);
  }

  std::vector<Cut> cuts_;
};

}  // namespace cleave::text
