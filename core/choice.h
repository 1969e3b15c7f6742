// Choices: enumerations with named values for configurations, options and checkpoints. The table of names
// stands next to the enumeration, in the order of its values. All readers, printers and documents use it.
//
//   enum class Side : uint8_t { left, right };
//   constexpr auto choice_names(Side) { return std::to_array<std::string_view>({"left", "right"}); }
#pragma once
#include <fmt/core.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace cleave {

template <class E>
concept Choice = std::is_enum_v<E> && requires {
  choice_names(E{});
};

template <Choice E>
inline constexpr auto kNamesOf = choice_names(E{});

template <Choice E>
constexpr std::string_view name_of(E choice) {
  return kNamesOf<E>[size_t(choice)];
}

// Returns the choice with exactly this name.
template <Choice E>
constexpr std::optional<E> choice_of(std::string_view name) {
  for (size_t i = 0; i < kNamesOf<E>.size(); ++i)
    if (kNamesOf<E>[i] == name) return E(i);
  return std::nullopt;
}

template <Choice E>
std::vector<std::string> names_of() {
  return {kNamesOf<E>.begin(), kNamesOf<E>.end()};
}

// Formats a list for messages: "a, b or c".
inline std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") + names[i];
  return text;
}

template <Choice E>
std::string list_of() {
  return listed(names_of<E>());
}

}  // namespace cleave

template <cleave::Choice E>
struct fmt::formatter<E> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <class Context>
  auto format(E choice, Context& context) const {
    return fmt::format_to(context.out(), "{}", cleave::name_of(choice));
  }
};
