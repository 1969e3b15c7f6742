#include <unistd.h>

#include <string>
#include <vector>

#include "app/compare/compare_options.h"
#include "app/start/launch_program.h"
#include "core/error.h"

namespace cleave::app {
namespace {

// Reports missing packages of the Python, or runs cleave.compare.
constexpr const char* kCompare = R"py(
import importlib.util, runpy, sys
for name in ("torch", "cleave"):
    if importlib.util.find_spec(name) is None:
        print(f"error: compare: {sys.executable} has no module {name}; write a Python that has torch and Cleave's package after --, or "
              "install them there (pip install . in Cleave's tree)", file=sys.stderr)
        sys.exit(2)
runpy.run_module("cleave.compare", run_name="__main__", alter_sys=True)
)py";

bool is_python(const std::string& word) { return word.substr(word.rfind('/') + 1).starts_with("python"); }

}  // namespace

void compare_script(const CompareOptions& o) {
  Arguments words{"", "-c", kCompare};
  words.insert(words.end(), {"--program", this_program(), "-n", std::to_string(o.ranks[0])});
  words.insert(words.end(), {"--steps", std::to_string(o.steps), "--seed", std::to_string(o.seed)});
  words.insert(words.end(), {"--against", o.against});
  if (!o.keep.empty()) words.insert(words.end(), {"--keep", o.keep});
  if (o.json) words.emplace_back("--json");
  words.emplace_back("--");
  words.insert(words.end(), o.command.begin(), o.command.end());
  const bool given = is_python(o.command[0]);
  for (const std::string& python : given ? Arguments{o.command[0]} : Arguments{"python", "python3"}) {
    words[0] = python;
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    execvp(python.c_str(), pointers.data());
  }
  fail(Exit::usage, "{}: cannot be started; write an existing Python after --",
       given ? o.command[0] : "python");
}

}  // namespace cleave::app
