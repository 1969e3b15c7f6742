// What cuts a text into pre-tokens, which merges do not cross: one expression after the other, each of which
// cuts what the one before it left.
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
    std::optional<Expression> expression;  // none: nothing is cut
    bool keep_matches = true, keep_between = true;
    bool blank_before = false;  // a piece that does not begin with a blank gets one
    bool at_lines = false;      // see Tokenizer::can_cut_at_lines
  };
  // Cuts at matches of an expression as tokenizer.json has it. Error(data) that begins with `where`.
  static Cut at(std::string_view expression, const std::string& where);
  // ByteLevel's own: GPT-2's expression, or nothing at all.
  static Cut byte_level(bool has_expression, const std::string& where);

  void add(Cut cut) { cuts_.push_back(std::move(cut)); }
  // Whether a text may be cut after a line end, as far as they go (Tokenizer::can_cut_at_lines).
  bool cut_at_lines() const;

  // What one thread needs while it cuts.
  class Work {
   public:
    explicit Work(const PreTokenizers& all);

   private:
    friend class PreTokenizers;
    std::vector<std::optional<Expression::Matcher>> matchers_;  // by cut
    std::vector<std::string> with_blank_;
  };
  // use(pre-token), in their order. A pre-token lasts until the next.
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
