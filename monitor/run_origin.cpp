#include "monitor/run_origin.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

namespace cleave::monitor {
namespace {

std::string user() {
  for (const char* name : {"LOGNAME", "USER"})
    if (const char* value = std::getenv(name); value && *value) return value;
  passwd entry{};
  passwd* found = nullptr;
  char text[1024];
  return getpwuid_r(geteuid(), &entry, text, sizeof text, &found) == 0 && found ? found->pw_name : "unknown";
}

// The command or script without its other arguments, which may contain secrets.
std::string source() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) return "cleave";
  const std::string program = std::filesystem::path(words[0]).filename();
  if (!program.starts_with("python")) return words.size() > 1 ? program + " " + words[1] : program;
  for (size_t i = 1; i < words.size(); ++i)
    if (words[i] == "-m" && i + 1 < words.size())
      return words[i + 1];
    else if (!words[i].starts_with('-'))
      return words[i];
  return program;
}

}  // namespace

std::map<std::string, std::string> tags_of_origin() {
  return {{"mlflow.user", user()}, {"mlflow.source.name", source()}, {"mlflow.source.type", "LOCAL"}};
}

}  // namespace cleave::monitor
