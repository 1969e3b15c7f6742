#include "kernels/choices.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/scratch.h"

namespace cleave::kernels {
namespace {

TEST(Choices, KeepTheFirstChoiceAndReportItOnce) {
  Choices choices;
  EXPECT_EQ(choices.find("a product"), std::nullopt);
  EXPECT_EQ(choices.keep("a product", "third"), "third");
  EXPECT_EQ(choices.keep("a product", "fourth"), "third");
  EXPECT_EQ(choices.find("a product"), "third");
  EXPECT_EQ(choices.take_new(), (Choices::Map{{"a product", "third"}}));
  EXPECT_TRUE(choices.take_new().empty());
}

TEST(Choices, ReplayedChoicesOverrideMeasuredOnes) {
  Choices choices;
  choices.replay({{"a product", "second"}});
  EXPECT_EQ(choices.keep("a product", "third"), "second");
  EXPECT_TRUE(choices.take_new().empty());
}

TEST(Choices, OfAFileAreThoseOfEarlierAndOtherProcesses) {
  const Scratch scratch;
  const std::string path = scratch.path("cache/cleave/choices");
  Choices first{ChoiceFile(path)}, second{ChoiceFile(path)};
  EXPECT_EQ(first.find("a product"), std::nullopt);
  EXPECT_EQ(second.find("a product"), std::nullopt);
  first.keep("a product", "third");
  first.keep("without space", "first", Choices::Reason::no_space);
  EXPECT_EQ(second.find("a product"), "third") << "of a process that runs";
  EXPECT_EQ(second.keep("a product", "fourth"), "third");
  EXPECT_EQ(second.take_new(), (Choices::Map{{"a product", "third"}}))
      << "used, so that a run can be replayed";
  Choices later{ChoiceFile(path)};
  EXPECT_EQ(later.find("a product"), "third");
  EXPECT_EQ(later.find("without space"), std::nullopt);
  later.replay({{"a product", "second"}});
  EXPECT_EQ(later.find("a product"), "second");
  struct stat s {};
  ASSERT_EQ(::stat(path.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777u, 0600u);
}

// Two processes that measure at the same time: the first line counts for both, later.
TEST(Choices, OfAFileKeepTheFirstOfTwoMeasurements) {
  const Scratch scratch;
  const std::string path = scratch.path("choices");
  Choices one{ChoiceFile(path)}, other{ChoiceFile(path)};
  one.keep("a product", "third"), other.keep("a product", "fourth");
  EXPECT_EQ(Choices{ChoiceFile(path)}.find("a product"), "third");
}

TEST(Choices, IgnoreLinesThatAreDamaged) {
  const Scratch scratch;
  const std::string path = scratch.path("choices");
  { ChoiceFile(path).add("a product", "third"); }
  std::string text;
  std::getline(std::ifstream(path), text);
  text += "\n";
  for (const std::string& wrong :
       {std::string("\n"), std::string("no tabs\n"), "\t\t\n" + text.substr(3), text.substr(0, 20) + text,
        text.substr(0, text.size() - 1), text.substr(0, 18) + "b" + text.substr(19)}) {
    std::ofstream(path) << wrong;
    EXPECT_EQ(Choices{ChoiceFile(path)}.find("a product"), std::nullopt) << wrong;
  }
  // The rest of a line that was read in part is read with its end.
  std::ofstream(path) << text.substr(0, 25);
  Choices waits{ChoiceFile(path)};
  EXPECT_EQ(waits.find("a product"), std::nullopt);
  std::ofstream(path, std::ios::app) << text.substr(25);
  EXPECT_EQ(waits.find("a product"), "third");
}

TEST(Choices, AreMeasuredWithoutAFileThatCanBeTrusted) {
  const Scratch scratch;
  const std::string path = scratch.path("choices"), link = scratch.path("link");
  { ChoiceFile(path).add("a product", "third"); }
  std::filesystem::create_symlink(path, link);
  const auto found = [](const std::string& from) {
    Choices choices{ChoiceFile(from)};
    choices.keep("another", "first");  // works, and is not an error
    return choices.find("a product");
  };
  EXPECT_EQ(found(path), "third");
  for (const std::string& from : {link, scratch.folder().string(), std::string("/dev/null"),
                                  std::string("/proc/none/choices"), std::string()})
    EXPECT_EQ(found(from), std::nullopt) << from;
  ::chmod(path.c_str(), 0620);
  EXPECT_EQ(found(path), std::nullopt) << "others can write";
}

TEST(Choices, OfManyProcessesAreAllInTheFile) {
  const Scratch scratch;
  const std::string path = scratch.path("choices");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Choices choices{ChoiceFile(path)};
      for (int i = 0; i < 200; ++i) choices.keep(fmt::format("{} of {}", i, t), std::to_string(i));
    });
  for (std::thread& t : threads) t.join();
  Choices choices{ChoiceFile(path)};
  for (int t = 0; t < 4; ++t)
    for (int i = 0; i < 200; ++i) EXPECT_EQ(choices.find(fmt::format("{} of {}", i, t)), std::to_string(i));
}

}  // namespace
}  // namespace cleave::kernels
