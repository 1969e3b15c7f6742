#include "app/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <system_error>

#include "app/other_options.h"
#include "config_schema/nearest_key.h"
#include "core/error.h"
#include "core/secrets.h"

namespace cleave::app {
namespace {

constexpr auto kNoLimit = std::numeric_limits<int64_t>::max();

template <class T>
std::string range(const char* what, T least, T most, bool open) {
  return open ? fmt::format("{} of at least {}", what, least)
              : fmt::format("{} from {} to {}", what, least, most);
}

// Rejects values that `fits` returns false for; CLI11 accepts on an empty string.
template <class Fits>
CLI::Validator validator(const std::string& wanted, Fits fits) {
  return CLI::Validator(
      [wanted, fits](std::string& text) {
        return fits(text) ? std::string() : fmt::format("expected {}, got {}", wanted, text);
      },
      "");
}

template <class T>
std::errc read(const std::string& text, T& value) {
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto r = std::from_chars(begin, text.data() + text.size(), value);
  return r.ec == std::errc{} && r.ptr != text.data() + text.size() ? std::errc::invalid_argument : r.ec;
}

// An open range names its limit only to values above it.
template <class T>
CLI::Validator integer_of(T least, T most, bool open) {
  return CLI::Validator(
      [=](std::string& text) {
        T value = 0;
        const std::errc error = read(text, value);
        if (error == std::errc{} && value >= least && value <= most) return std::string();
        const bool below_limit = open && (error != std::errc::result_out_of_range || text.starts_with('-'));
        return fmt::format("expected {}, got {}", range("an integer", least, most, below_limit), text);
      },
      "");
}

// Returns the subcommands and options that are valid at the parser's position.
std::vector<std::string> known_to(const CLI::App& app, bool options) {
  std::vector<std::string> names;
  if (options)
    for (const CLI::Option* o : app.get_options())
      for (const std::string& name : o->get_lnames()) names.push_back("--" + name);
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!options) names.push_back(sub->get_name());
    if (options && sub->parsed())
      for (std::string& name : known_to(*sub, true)) names.push_back(std::move(name));
  }
  return names;
}

// Returns the equivalent of another program's option, or the nearest known word.
std::string suggestion(const CLI::App& app, const std::string& word, bool option) {
  const std::vector<std::string> known = known_to(app, option);
  const std::string name = word.substr(0, word.find('='));
  const std::string equivalent = option ? equivalent_of(name, known) : "";
  return equivalent.empty() ? did_you_mean(name, known) : equivalent;
}

// Lists unknown words in the order typed; values of unknown options are not listed separately.
void refuse_unknown(const CLI::App& app) {
  const std::vector<std::string> left = app.remaining(true);
  std::string text;
  bool option_before = false;
  for (const std::string& word : left) {
    const bool option = word.starts_with('-');
    if (!option && option_before) continue;
    option_before = option_before || option;
    text += fmt::format("{}{} {}{}", text.empty() ? "" : "\n  ",
                        option ? "unknown option" : "unexpected argument",
                        without_secrets(std::vector{word}).front(), suggestion(app, word, option));
  }
  if (!text.empty()) fail(Exit::usage, "{}\n  {} --help lists the options", text, app.get_name());
}

// An empty value usually comes from an unset shell variable: "--output $DIR" would train without
// checkpoints.
void refuse_empty_values(const CLI::App& app) {
  for (const CLI::Option* o : app.get_options()) {
    const std::string name = o->get_name();
    if (o->get_expected_min() == 0) continue;  // the value is optional
    for (const std::string& value : o->results())
      require(!value.empty(), Exit::usage, "{}: empty value; give one, or leave the option out", name);
  }
  for (const CLI::App* sub : app.get_subcommands()) refuse_empty_values(*sub);
}

// Returns the error in this program's words. CLI11 would say "Could not convert: --bf16 = maybe"
// and "--steps: 1 required INT missing".
std::string said(const CLI::ParseError& e) {
  std::string text = e.what();
  if (const size_t colon = text.find(": 1 required "); colon != std::string::npos)
    return text.substr(0, colon) + ": expected a value, got none";
  const std::string_view once = ": At Most 1 required but received ";
  if (const size_t colon = text.find(once); colon != std::string::npos)
    return fmt::format("{}: given {} times; give it once", text.substr(0, colon),
                       text.substr(colon + once.size()));
  const std::string_view convert = "Could not convert: ";
  const size_t equals = text.find(" = ");
  if (!text.starts_with(convert) || equals == std::string::npos) return text;
  return fmt::format("{}: invalid value {}", text.substr(convert.size(), equals - convert.size()),
                     text.substr(equals + 3));
}

}  // namespace

CLI::Validator integer(int64_t least, int64_t most) { return integer_of(least, most, most == kNoLimit); }

CLI::Validator seed() { return integer_of(uint64_t{0}, std::numeric_limits<uint64_t>::max(), true); }

CLI::Validator number(double least, double most) {
  return validator(range("a number", least, most, std::isinf(most)), [=](const std::string& text) {
    double value = 0;
    return read(text, value) == std::errc{} && std::isfinite(value) && value >= least && value <= most;
  });
}

CLI::Validator one_of(std::vector<std::string> words) {
  return CLI::Validator(
      [words = std::move(words)](std::string& text) {
        if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
        return fmt::format("expected one of {}, got {}{}", fmt::join(words, ", "), text,
                           did_you_mean(text, words));
      },
      "");
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = config::nearest_word(word, known);
  return near.empty() ? "" : fmt::format("; did you mean {}?", near);
}

bool parse(CLI::App& app, Arguments arguments) {
  for (std::string& a : arguments) {
    if (a == "--") break;
    if (!a.starts_with("--")) continue;
    const size_t end = std::min(a.find('='), a.size());
    std::replace(a.begin() + 2, a.begin() + long(end), '-', '_');
  }
  app.name("cleave " + app.get_name());
  app.allow_extras();
  for (CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) sub->allow_extras();
  std::reverse(arguments.begin(), arguments.end());  // CLI11 expects reverse order
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& e) {
    refuse_unknown(app);  // a missing option was often misspelled
    fail(Exit::usage, "{}; {} --help lists the options", said(e), app.get_name());
  }
  refuse_unknown(app);
  // The launcher takes DeepSpeed's options; their defaults for hosts and arguments are empty.
  if (app.get_name() != "cleave launch") refuse_empty_values(app);
  return true;
}

}  // namespace cleave::app
