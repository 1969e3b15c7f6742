#include "app/parse.h"

#include <algorithm>
#include <cstdio>

#include "core/error.h"

namespace cleave {

bool parse(CLI::App& app, Arguments arguments) {
  for (std::string& a : arguments) {
    if (a == "--") break;
    if (!a.starts_with("--")) continue;
    const size_t end = std::min(a.find('='), a.size());
    std::replace(a.begin() + 2, a.begin() + long(end), '-', '_');
  }
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& e) {
    fail(Exit::usage, "{}; cleave {} --help lists the options", e.what(), app.get_name());
  }
  return true;
}

}  // namespace cleave
