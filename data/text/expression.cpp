#include "data/text/expression.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/printable.h"

namespace cleave::text {
namespace {

// Unicode's White_Space, the meaning of \s in Oniguruma; PCRE2's \s also has U+180E.
constexpr std::string_view kSpaces = "\\t-\\r\\x{85}\\p{Z}";

constexpr std::array<std::string_view, 31> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P", "Pc",
    "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};

class Translation {
 public:
  Translation(std::string_view in, const std::string& where) : in_(in), where_(where) {}

  std::string run() {
    while (at_ < in_.size()) item();
    return std::move(out_);
  }

 private:
  [[noreturn]] void stop(size_t bytes) const {
    fail(Exit::data,
         "{}: unsupported expression: {} at byte {} may have another meaning in the tokenizers library; make "
         "a token file with that library, and give the .bin",
         where_, in_quotes(in_.substr(at_, bytes)), at_);
  }
  bool sees(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  void copy(size_t bytes) {
    out_ += in_.substr(at_, bytes);
    at_ += bytes;
  }

  void item() {
    switch (in_[at_]) {
      case '\\':
        return escape(false);
      case '[':
        return set();
      case '(':
        return open();
      case '{':
        return times();
      case '?':
      case '*':
      case '+':
        return repeat();
      case ']':
      case '}':
      case '.':
      case '^':
      case '$':
        stop(1);
      default:
        return copy(1);
    }
  }

  void open() {
    for (const std::string_view known : {"(?:", "(?i:", "(?!", "(?="})
      if (sees(known)) return copy(known.size());
    if (in_.substr(at_ + 1).starts_with('?') || in_.substr(at_ + 1).starts_with('*')) stop(3);
    out_ += "(?:", ++at_;  // groups need not capture
  }

  // One of ? * +, optionally followed by + or ?.
  void repeat() {
    copy(1);
    if (sees("+") || sees("?")) copy(1);
    if (sees("+") || sees("?") || sees("*")) stop(1);
  }

  // {2}, {2,} or {2,3}. The meaning of a following quantifier differs.
  void times() {
    size_t end = at_ + 1;
    auto digits = [&] {
      const size_t first = end;
      while (end < in_.size() && in_[end] >= '0' && in_[end] <= '9') ++end;
      return end > first && end - first <= 3;
    };
    if (!digits()) stop(end - at_ + 1);
    if (end < in_.size() && in_[end] == ',') {
      const size_t comma = end++;
      if (!digits() && end != comma + 1) stop(end - at_);
    }
    if (end >= in_.size() || in_[end] != '}') stop(end - at_ + 1);
    copy(end + 1 - at_);
    if (sees("+") || sees("?") || sees("*") || sees("{")) stop(1);
  }

  void set() {
    copy(1);
    if (sees("^")) copy(1);
    if (sees("]") || sees("-")) stop(1);
    while (true) {
      if (at_ >= in_.size()) stop(0);
      if (in_[at_] == ']') return copy(1);
      if (in_[at_] == '[' || sees("&&")) stop(2);
      in_[at_] == '\\' ? escape(true) : copy(1);
    }
  }

  void escape(bool in_set) {
    if (at_ + 1 >= in_.size()) stop(1);
    const char c = in_[at_ + 1];
    if (c == 's' || c == 'S') {
      if (in_set && c == 'S') stop(2);
      if (!in_set) out_ += c == 's' ? "[" : "[^";
      out_ += kSpaces;
      if (!in_set) out_ += "]";
      at_ += 2;
    } else if (c == 'p' || c == 'P') {
      property();
    } else if (c == 'd' || c == 'D' || c == 'r' || c == 'n' || c == 't' || c == 'f') {
      copy(2);
    } else if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c))) {
      copy(2);
    } else {
      stop(2);
    }
  }

  void property() {
    const size_t end = in_.find('}', at_);
    if (in_.substr(at_ + 2, 1) != "{" || end == std::string_view::npos) stop(3);
    const std::string_view name = in_.substr(at_ + 3, end - at_ - 3);
    if (std::find(kCategories.begin(), kCategories.end(), name) == kCategories.end()) stop(end + 1 - at_);
    copy(end + 1 - at_);
  }

  std::string_view in_;
  const std::string& where_;
  std::string out_;
  size_t at_ = 0;
};

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

std::string to_pcre2(std::string_view oniguruma, const std::string& where) {
  return Translation(oniguruma, where).run();
}

std::string literal_expression(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && byte > 0x20 && !std::isalnum(byte)) out += '\\';
    out += c;
  }
  return out;
}

struct Expression::Code {
  pcre2_code* code = nullptr;
  bool compiled = false;  // to machine code
  std::string where;
  ~Code() { pcre2_code_free(code); }
};

Expression::Expression(std::string_view oniguruma, const std::string& where)
    : code_(std::make_unique<Code>()) {
  const std::string text = to_pcre2(oniguruma, where);
  int error = 0;
  size_t at = 0;
  code_->where = where;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_UTF | PCRE2_UCP,
                              &error, &at, nullptr);
  require(code_->code != nullptr, Exit::data, "{}: invalid expression at byte {} of {}: {}", where, at,
          in_quotes(text, 200), pcre2_message(error));
  uint32_t matches_nothing = 0;
  pcre2_pattern_info(code_->code, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  require(matches_nothing == 0, Exit::data,
          "{}: the expression {} matches empty texts, which is not supported", where,
          in_quotes(oniguruma, 200));
  code_->compiled = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
}

Expression::~Expression() = default;
Expression::Expression(Expression&& other) noexcept = default;

struct Expression::Matcher::State {
  const Code* code = nullptr;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~State() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Expression::Matcher::Matcher(const Expression& expression) : state_(std::make_unique<State>()) {
  constexpr size_t kFirst = size_t{64} << 10, kMost = size_t{16} << 20;
  state_->code = expression.code_.get();
  state_->match = pcre2_match_data_create(1, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  state_->stack = pcre2_jit_stack_create(kFirst, kMost, nullptr);
  pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}

Expression::Matcher::~Matcher() = default;
Expression::Matcher::Matcher(Matcher&& other) noexcept = default;

bool Expression::Matcher::next(std::string_view text, size_t from, size_t& begin, size_t& end) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found = state_->code->compiled ? pcre2_jit_match(state_->code->code, subject, text.size(), from,
                                                             0, state_->match, state_->context)
                                           : pcre2_match(state_->code->code, subject, text.size(), from,
                                                         PCRE2_NO_UTF_CHECK, state_->match, state_->context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  require(found >= 0, Exit::data, "{}: the expression fails on a text: {}", state_->code->where,
          pcre2_message(found));
  const size_t* where = pcre2_get_ovector_pointer(state_->match);
  begin = where[0], end = where[1];
  return true;
}

}  // namespace cleave::text
