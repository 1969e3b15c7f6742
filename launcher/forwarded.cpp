#include "launcher/forwarded.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <sstream>

#include "core/error.h"
#include "core/file_owner.h"
#include "core/printable.h"
#include "launcher/variables.h"

namespace cleave::launcher {
namespace {

std::string without_blanks(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r"), last = text.find_last_not_of(" \t\r");
  return first == text.npos ? "" : text.substr(first, last - first + 1);
}

bool is_variable_name(std::string_view name) {
  return !name.empty() && !std::isdigit(uint8_t(name[0])) &&
         std::all_of(name.begin(), name.end(), [](char c) { return c == '_' || std::isalnum(uint8_t(c)); });
}

bool is_set_by_launchers(const std::string& name) {
  constexpr const char* kOurs[] = {"CLEAVE_LAUNCHED",   "CLEAVE_CORES", "CLEAVE_JOB_ID",
                                   "CLEAVE_ATTEMPT",    "CLEAVE_TOKEN", "CLEAVE_MEETING_PORT",
                                   "CLEAVE_MEETING_FD", "CLEAVE_BOARD"};
  return std::find(std::begin(kOurs), std::end(kOurs), name) != std::end(kOurs);
}

}  // namespace

Environment forwarded_variables(const Environment& env, const std::string& folder) {
  Environment result;
  for (const auto& [name, value] : env)
    for (const char* prefix : {"MLFLOW", "PYTHON", "MV2", "UCX", "NCCL", "CLEAVE_"})
      if (name.starts_with(prefix) && !is_set_by_launchers(name)) result[name] = value;
  if (Variables(env).has("AISC_JOB_NAME"))
    for (const char* own : {"NCCL_IB_HCA", "UCX_NET_DEVICES"}) result.erase(own);
  const std::string path = Variables(env).text("PYTHONPATH");
  result["PYTHONPATH"] = path.empty() ? folder : folder + ":" + path;
  return result;
}

Environment parse_environment_file(std::string_view text, const std::string& file) {
  Environment result;
  std::istringstream in{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    line = without_blanks(line);
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    const std::string name = without_blanks(line.substr(0, equals));
    require(equals != line.npos && is_variable_name(name), Exit::usage,
            "{}:{}: {} is not a variable (expected NAME=VALUE); correct the line", file, number,
            in_quotes(line));
    std::string value = without_blanks(line.substr(equals + 1));
    if (value.size() >= 2 && (value[0] == '"' || value[0] == '\'') && value.back() == value[0])
      value = value.substr(1, value.size() - 2);
    result[name] = value;
  }
  return result;
}

Environment environment_of_files(const Environment& env, const std::string& folder) {
  const Variables v(env);
  const std::string name = v.has("DS_ENV_FILE") ? v.text("DS_ENV_FILE") : ".deepspeed_env";
  Environment result;
  for (const std::string& where : {v.text("HOME"), folder}) {
    const std::string path = where + "/" + name;
    std::ifstream in(path);
    if (where.empty() || !in) continue;
    require(
        is_trusted_file(path), Exit::usage,
        "{}: other users can change the variables of the job (got a file of another user, or one that all "
        "users can write); make it yours with mode 600, or remove it",
        path);
    for (auto& [key, value] :
         parse_environment_file(std::string(std::istreambuf_iterator<char>(in), {}), path))
      result[key] = value;
  }
  return result;
}

}  // namespace cleave::launcher
