#include "config_schema/wrong_variables.h"

#include "config_schema/nearest_key.h"
#include "core/environment.h"
#include "core/error.h"

namespace cleave::config {

void refuse_wrong_variables(const char* const* environment) {
  constexpr size_t kPrefix = std::string_view("CLEAVE_").size();
  std::vector<std::string> known;
  for (const EnvironmentVariable& v : environment_variables()) known.emplace_back(v.name.substr(kPrefix));
  for (const std::string& name : check_environment(environment))
    if (const std::string near = nearest_word(name.substr(kPrefix), known); !near.empty())
      fail(Exit::usage, "{}: unknown variable; did you mean CLEAVE_{}?", name, near);
}

}  // namespace cleave::config
