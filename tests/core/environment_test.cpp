#include "core/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "core/error.h"
#include "tests/scratch.h"

namespace cleave {
namespace {

std::string refusal(const std::string& entry) {
  const char* const environment[] = {"PATH=/bin", entry.c_str(), nullptr};
  return error_text(Exit::usage, [&] { check_environment(environment); });
}

// A valid value for every form, and a value that is invalid for all forms except TEXT.
TEST(Environment, AcceptsValidValuesAndRejectsOthersInOneLine) {
  const std::map<std::string_view, std::string> right{
      {"FILE", "/proc/self/exe"}, {"BYTES", "8GiB"}, {"NUMBER", "3"}, {"CORES", "0,1"}, {"TEXT", "what?"}};
  ASSERT_GT(environment_variables().size(), 10u);
  for (const EnvironmentVariable& v : environment_variables()) {
    const std::string name(v.name), values(v.values);
    EXPECT_EQ(refusal(name + "="), "") << "set to nothing is not set";
    std::istringstream forms(values);
    for (std::string form; forms >> form;)
      EXPECT_EQ(refusal(name + "=" + (right.contains(form) ? right.at(form) : form)), "") << form;
    if (values.ends_with("TEXT")) continue;
    for (const char* wrong : {"offf", "OFF", "yes", "/no/such/file.so", "on,off"}) {
      const std::string text = refusal(name + "=" + wrong);
      EXPECT_NE(text.find(name), std::string::npos) << wrong << " was accepted: " << text;
      EXPECT_NE(text.find(wrong), std::string::npos) << text;
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    }
  }
  EXPECT_EQ(refusal("CLEAVE_WGMMA=on"),
            "CLEAVE_WGMMA: invalid value (got 'on', expected off); correct it, or unset it for the attention "
            "kernels of Hopper");
  EXPECT_EQ(refusal("CLEAVE_NCCL=libnccl.so.2"), "");
}

TEST(Environment, IgnoresOtherNamesAndReportsUnknownCleaveNames) {
  const char* const environment[] = {"CLEAVE_HOME=/opt", "NCCL_DEBUG=INFO", "CLEAVE_TEST_ANY=thing",
                                     "CLEAVE_CUDN=off", nullptr};
  EXPECT_EQ(check_environment(environment), (std::vector<std::string>{"CLEAVE_HOME", "CLEAVE_CUDN"}));
}

TEST(Environment, ReturnsValuesOfTableVariablesOnly) {
  unsetenv("CLEAVE_NCCL_REGISTER");
  EXPECT_EQ(environment_value("CLEAVE_NCCL_REGISTER"), "");
  setenv("CLEAVE_NCCL_REGISTER", "on", 1);
  EXPECT_EQ(environment_value("CLEAVE_NCCL_REGISTER"), "on");
  setenv("CLEAVE_NCCL_REGISTER", "true", 1);
  EXPECT_THROW(environment_value("CLEAVE_NCCL_REGISTER"), Error);
  unsetenv("CLEAVE_NCCL_REGISTER");
  EXPECT_THROW(environment_value("CLEAVE_NO_SUCH"), Error);
}

// All readers of CLEAVE_ variables use the table, and every table entry has a reader.
TEST(Environment, IsReadOnlyThroughTheTable) {
  const std::filesystem::path root = SOURCES;
  std::set<std::string> known, read;
  for (const EnvironmentVariable& v : environment_variables()) known.emplace(v.name);
  const std::regex past(R"(getenv\(\s*"CLEAVE_)"), name(R"re("(CLEAVE_[A-Z_]+[A-Z])["=])re");
  for (const char* folder :
       {"app",      "benchmarks", "checkpoint", "comm",    "config_schema",   "core",    "data",
        "device",   "kernels",    "launcher",   "model",   "monitor",         "offload", "optim",
        "pipeline", "plan",       "python",     "runtime", "tensor_parallel", "tests",   "zero"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      const bool python = extension == ".py";
      if (!python && extension != ".cpp" && extension != ".cu" && extension != ".h" && extension != ".cuh")
        continue;
      if (entry.path().stem() == "environment" || entry.path().stem() == "environment_test") continue;
      std::ifstream in(entry.path());
      const std::string text((std::istreambuf_iterator<char>(in)), {});
      EXPECT_FALSE(std::regex_search(text, past)) << entry.path();
      for (std::sregex_iterator at(text.begin(), text.end(), name); at != std::sregex_iterator(); ++at)
        if (const std::string found = (*at)[1]; std::string_view(folder) != "tests" || known.contains(found))
          read.insert(found);
    }
  EXPECT_EQ(read, known);
  std::ifstream page(root / "docs/engine.md");
  const std::string documented((std::istreambuf_iterator<char>(page)), {});
  for (const std::string& variable : known)
    EXPECT_NE(documented.find("`" + variable + "`"), std::string::npos)
        << variable << " is not in docs/engine.md";
}

}  // namespace
}  // namespace cleave
