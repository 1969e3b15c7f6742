// The shared secret of ranks over PMIx. Each rank is a process that loads a stand-in for the library.
#include "launcher/pmix.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "launcher/pmi.h"

namespace cleave::launcher {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class Pmix : public testing::Test {
 protected:
  Pmix() {
    std::string name = (fs::temp_directory_path() / "pmix.XXXXXX").string();
    CHECK(mkdtemp(name.data()) != nullptr, "mkdtemp");
    folder_ = name;
  }
  ~Pmix() override { fs::remove_all(folder_); }

  // Starts these ranks of a job of `size` ranks, and returns the result of each as "SECRET|WHY".
  std::vector<std::string> found(std::vector<int> ranks, int size, const std::string& fails = {}) {
    std::vector<pid_t> children;
    for (const int rank : ranks) {
      const pid_t pid = fork();
      CHECK(pid >= 0, "fork");
      if (pid == 0) {
        setenv("PMIX_RANK", std::to_string(rank).c_str(), 1);
        setenv("PMIX_STANDIN_SIZE", std::to_string(size).c_str(), 1);
        setenv("PMIX_STANDIN_FOLDER", folder_.c_str(), 1);
        setenv("PMIX_STANDIN_FAILS", fails.c_str(), 1);
        std::string why;
        const Environment env{{"PMIX_NAMESPACE", "job"}, {"PMIX_RANK", std::to_string(rank)}};
        const auto deadline = comm::Clock::now() + (int(ranks.size()) < size ? 200ms : 60s);
        const std::string secret = secret_by_pmix(env, deadline, why, PMIX_STANDIN);
        std::ofstream(folder_ / std::to_string(rank)) << secret << "|" << why;
        _exit(0);
      }
      children.push_back(pid);
    }
    for (const pid_t child : children) waitpid(child, nullptr, 0);
    std::vector<std::string> answers;
    for (const int rank : ranks) {
      std::ostringstream text;
      text << std::ifstream(folder_ / std::to_string(rank)).rdbuf();
      answers.push_back(text.str());
    }
    return answers;
  }

 private:
  fs::path folder_;
};

TEST_F(Pmix, GivesAllRanksTheSecretOfTheFirst) {
  const std::vector<std::string> answers = found({0, 1, 2}, 3);
  EXPECT_EQ(answers[0].size(), 33u) << answers[0];
  EXPECT_EQ(answers[0].back(), '|');
  EXPECT_EQ(answers[1], answers[0]);
  EXPECT_EQ(answers[2], answers[0]);
}

TEST_F(Pmix, NamesTheCallThatFails) {
  EXPECT_EQ(found({0}, 1, "PMIx_Init")[0], "|PMIx: PMIx_Init failed with -1");
  EXPECT_EQ(found({0}, 1, "PMIx_Put")[0], "|PMIx: PMIx_Put failed with -1");
  EXPECT_EQ(found({0, 1}, 2, "PMIx_Get")[1], "|PMIx: PMIx_Get returned no string");
}

TEST_F(Pmix, NamesMissingRanks) { EXPECT_EQ(found({1}, 2)[0], "|PMIx: ranks are missing at the deadline"); }

TEST_F(Pmix, NamesAMissingLibrary) {
  const Environment env{{"PMIX_NAMESPACE", "job"}, {"PMIX_RANK", "0"}};
  std::string why;
  EXPECT_EQ(secret_by_pmix(env, comm::Clock::now() + 1s, why, "libmissing.so.2"), "");
  EXPECT_TRUE(why.starts_with("PMIx was not loaded (libmissing.so.2: cannot open")) << why;
}

TEST_F(Pmix, IsNotUsedWithoutAServer) {
  std::string why;
  EXPECT_EQ(secret_by_pmi({{"PMIX_RANK", "0"}}, comm::Clock::now() + 1s, why), "");
  EXPECT_EQ(why, "");
}

}  // namespace
}  // namespace cleave::launcher
