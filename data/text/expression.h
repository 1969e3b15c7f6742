// A pre-tokenizer's regular expression, run by PCRE2 with Unicode properties.
//
// Expressions of tokenizer.json are written for Oniguruma. Syntax with the same meaning in both is passed on
// unchanged, and \s and \S as Oniguruma's characters. All other syntax is rejected with its position, because
// an expression with a slightly different meaning would give different tokens.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace cleave::text {

class Expression {
 public:
  // Matching state of one thread.
  class Matcher {
   public:
    explicit Matcher(const Expression& expression);
    ~Matcher();
    Matcher(Matcher&& other) noexcept;

    // First match [begin, end) in `text` at or after `from`; false if none. `text` must be UTF-8; lookaround
    // does not see beyond it. Throws Error(data) if the expression exceeds its limits.
    bool next(std::string_view text, size_t from, size_t& begin, size_t& end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

  // Throws Error(data), which begins with `where`, for an expression that is unsupported, invalid, or can
  // match an empty text.
  Expression(std::string_view oniguruma, const std::string& where);
  ~Expression();
  Expression(Expression&& other) noexcept;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

// Translates the expression to PCRE2. Throws Error(data), which begins with `where` and names syntax that may
// have another meaning.
std::string to_pcre2(std::string_view oniguruma, const std::string& where);

// Expression that matches exactly this text.
std::string literal_expression(std::string_view text);

}  // namespace cleave::text
