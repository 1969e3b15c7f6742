#include "monitor/csv_monitor.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/scratch.h"

namespace cleave::monitor {
namespace {

TEST(CsvMonitor, HasTheFilesAndHeadersOfDeepSpeed) {
  const Scratch scratch;
  CsvMonitor csv(scratch.path("out"), "job");
  EXPECT_FALSE(std::filesystem::exists(scratch.path("out")));
  csv.scalar("Train/Samples/lr", 0.001, 8);
  csv.scalar("Train/Samples/train_loss", 2.5, 8);
  csv.scalar("Train/Samples/lr", 1e-9, 16);
  EXPECT_EQ(scratch.read("out/job/Train_Samples_lr.csv"), "step,lr\n8,0.001\n16,1e-09\n");
  EXPECT_EQ(scratch.read("out/job/Train_Samples_train_loss.csv"), "step,train_loss\n8,2.5\n");
}

TEST(CsvMonitor, TagsWithBlanksOrWithoutFoldersAreFileNames) {
  const Scratch scratch;
  CsvMonitor csv(scratch.path("out"), "");
  csv.scalar("grad norm", std::nan(""), 1);
  EXPECT_EQ(scratch.read("out/grad_norm.csv"), "step,grad norm\n1,nan\n");
}

TEST(CsvMonitor, AResumedRunAddsRowsButNoSecondHeader) {
  const Scratch scratch;
  CsvMonitor(scratch.path("out"), "job").scalar("Train/lr", 1, 1);
  CsvMonitor(scratch.path("out"), "job").scalar("Train/lr", 2, 2);
  EXPECT_EQ(scratch.read("out/job/Train_lr.csv"), "step,lr\n1,1\n2,2\n");
}

TEST(CsvMonitor, AFileThatCannotBeOpenedIsOneWarningThatNamesIt) {
  const Scratch scratch;
  CsvMonitor csv(scratch.write("file", "x"), "job");
  testing::internal::CaptureStderr();
  csv.scalar("lr", 1, 1), csv.scalar("lr", 2, 2);
  const std::string said = testing::internal::GetCapturedStderr();
  for (const char* part : {"warning: ", "file/job/lr.csv", "Not a directory"})
    EXPECT_NE(said.find(part), said.npos) << said;
  EXPECT_EQ(said.find("warning: ", 1), said.npos) << said;
}

}  // namespace
}  // namespace cleave::monitor
