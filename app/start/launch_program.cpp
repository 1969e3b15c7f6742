#include "app/start/launch_program.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "app/commands.h"
#include "app/parse.h"
#include "core/error.h"

namespace cleave::app {
namespace {

// Returns the program's path from PATH, or an empty string.
std::string found_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  const std::string folders = path ? path : "/usr/local/bin:/usr/bin:/bin";
  for (size_t at = 0; at <= folders.size();) {
    const size_t end = std::min(folders.find(':', at), folders.size());
    const std::string file = folders.substr(at, end - at) + "/" + name;
    if (end > at && access(file.c_str(), X_OK) == 0 && !std::filesystem::is_directory(file)) return file;
    at = end + 1;
  }
  return {};
}

std::string python(const LaunchRequest& request) {
  if (!request.venv_script.empty()) return "python";  // the one of the virtual environment
  for (const char* name : {"python", "python3"})
    if (const std::string file = found_in_path(name); !file.empty()) return file;
  fail(Exit::usage,
       "python: not found in PATH, but {} needs it; add it to PATH, or pass --no_python for a program that "
       "is not a script",
       request.command[0]);
}

bool is_native(const std::string& file) {
  char begin[4] = {};
  std::ifstream(file, std::ios::binary).read(begin, sizeof(begin));
  return std::string_view(begin, 4) ==
         "\x7f"
         "ELF";
}

bool is_ours(const LaunchRequest& request, const std::string& word) {
  if (word == "cleave") return true;
  return request.dashes && std::any_of(std::begin(kCommands), std::end(kCommands),
                                       [&](const Command& c) { return word == c.name; });
}

// A sourced environment may provide programs that are not visible here.
void require_program(const LaunchRequest& request, const std::string& word, bool here) {
  if (!here || word.find('/') != std::string::npos || !request.venv_script.empty()) return;
  std::vector<std::string> names;
  for (const Command& c : kCommands) names.emplace_back(c.name);
  require(!found_in_path(word).empty(), Exit::usage, "'{}': neither a command nor a program in PATH{}", word,
          did_you_mean(word, names));
}

}  // namespace

std::string this_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::string mpirun_of(launcher::LauncherKind kind) {
  const std::string found = found_in_path("mpirun");
  const char* own = kind == launcher::LauncherKind::openmpi ? ".openmpi"
                    : kind == launcher::LauncherKind::mpich ? ".mpich"
                                                            : nullptr;
  return own && access((found + own).c_str(), X_OK) == 0 ? found + own : "mpirun";
}

launcher::Program program_of(const LaunchRequest& r, bool here) {
  const std::string& word = r.command[0];
  launcher::Program p;
  p.after.assign(r.command.begin() + 1, r.command.end());
  require(!r.module || !r.no_python, Exit::usage, "--module: conflicts with --no_python; give one of them");
  if (is_ours(r, word)) {  // its ranks read the environment
    p.before = {this_program()};
    if (word != "cleave") p.after.insert(p.after.begin(), word);
  } else if (r.dashes) {
    require_program(r, word, here);
    p.before = {word};
  } else if (r.no_python || (!r.module && is_native(word))) {
    p.before = {word}, p.local_rank = !r.no_local_rank;
  } else if (r.module) {
    p.before = {python(r), "-u", "-m", word}, p.local_rank = !r.no_local_rank;
  } else {
    require(
        !here || access(word.c_str(), R_OK) == 0, Exit::usage,
        "{}: the script does not exist; put launcher options before the script and script options after it",
        word);
    p.before = {python(r), "-u", word}, p.local_rank = !r.no_local_rank;
  }
  if (r.venv_script.empty()) return p;
  require(!here || access(r.venv_script.c_str(), R_OK) == 0, Exit::usage, "--venv_script: {} does not exist",
          r.venv_script);
  p.before.insert(p.before.begin(), {"bash", "-c", "source \"$0\" && exec \"$@\"",
                                     std::filesystem::absolute(r.venv_script).string()});
  return p;
}

}  // namespace cleave::app
