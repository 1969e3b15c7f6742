// A pre-tokenizer's regular expression, run by PCRE2 with Unicode's properties.
//
// Expressions of tokenizer.json are written for Oniguruma. What means the same in both goes over as it is,
// and \s and \S go over as the characters that Oniguruma means; anything else is refused with its position,
// because an expression that nearly means the same gives other tokens somewhere.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace cleave::text {

class Expression {
 public:
  // What one thread needs while it looks for matches.
  class Matcher {
   public:
    explicit Matcher(const Expression& expression);
    ~Matcher();
    Matcher(Matcher&& other) noexcept;

    // The first match in `text` at or after `from`: [begin, end). False where there is none. `text` must be
    // UTF-8, and is all that looking around sees. Error(data) where the expression needs more than its
    // limits.
    bool next(std::string_view text, size_t from, size_t& begin, size_t& end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

  // Error(data) that begins with `where` for an expression that is refused, wrong, or matches nothing at all.
  Expression(std::string_view oniguruma, const std::string& where);
  ~Expression();
  Expression(Expression&& other) noexcept;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

// The same expression for PCRE2. Error(data) that begins with `where` names what is not known to mean the
// same.
std::string to_pcre2(std::string_view oniguruma, const std::string& where);

// An expression that matches this text and nothing else.
std::string literal_expression(std::string_view text);

}  // namespace cleave::text
