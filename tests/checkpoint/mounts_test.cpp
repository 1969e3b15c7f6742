// Mounts of object stores that cannot rename folders or files, link, lock, append or overwrite.
#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

#include "app/run/run_lock.h"
#include "tests/checkpoint/file_faults.h"
#include "tests/checkpoint/hand_made.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {
namespace fs = std::filesystem;

checkpoint::SavedCheckpoint save_eight(const fs::path& dir, const std::string& tag, float value) {
  checkpoint::SavedCheckpoint saved;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    const checkpoint::Record record{
        "master",
        "w",
        {8},
        {part(8, 2, world.rank())},
        [value](Range r, Tensor to) { std::fill_n(to.as<float>(), r.size(), value); },
        {}};
    const checkpoint::SavedCheckpoint mine = checkpoint::save_checkpoint(dir, tag, {record}, "{}", world);
    if (world.rank() == 0) saved = mine;
  });
  return saved;
}

float value_of_eight_in(const fs::path& dir, const std::string& tag) {
  const std::vector<float> held = read(checkpoint::CheckpointReader(dir, tag), "master", "w", {8}, {{0, 8}});
  EXPECT_EQ(held, std::vector<float>(8, held[0]));
  return held[0];
}

TEST(Mounts, WithoutRenamesHoldCheckpoints) {
  for (const Mount mount : {Mount::renames_files, Mount::renames_none})
    for (const int refusal : {EPERM, EACCES, ENOSYS, EOPNOTSUPP, EXDEV, EMFILE}) {
      const Scratch scratch;
      const fs::path& dir = scratch.folder();
      mount_files(dir.c_str(), mount, refusal);
      for (int n = 1; n <= 2; ++n) {
        const std::string tag = fmt::format("step{}", n);
        const checkpoint::SavedCheckpoint saved = save_eight(dir, tag, float(n));
        EXPECT_EQ(saved.name, tag);
        EXPECT_FALSE(saved.renamed);
        EXPECT_EQ(value_of_eight_in(dir, "latest"), float(n));
      }
      EXPECT_EQ(value_of_eight_in(dir, "step1"), 1);
      // A checkpoint is never overwritten: its replacement has another name, and is complete before the old
      // one is removed.
      for (int n = 3; n <= 5; ++n) {
        const checkpoint::SavedCheckpoint saved = save_eight(dir, "step2", float(n));
        EXPECT_EQ(saved.name, n % 2 ? "step2.2" : "step2");
        EXPECT_EQ(value_of_eight_in(dir, "latest"), float(n));
        EXPECT_EQ(checkpoint::list_checkpoints(dir).size(), 2u);
      }
      checkpoint::remove_checkpoint(dir / "step1");
      // A new save replaces the rest of a killed save.
      fs::create_directory(dir / "step6");
      std::ofstream(dir / "step6" / "shard-00007.safetensors") << "half";
      EXPECT_EQ(save_eight(dir, "step6", 6).name, "step6");
      EXPECT_FALSE(fs::exists(dir / "step6" / "shard-00007.safetensors"));
      for (const auto& entry : fs::recursive_directory_iterator(dir)) {
        const std::string name = entry.path().filename();
        EXPECT_EQ(name.find("tmp"), name.npos) << entry.path();
        EXPECT_EQ(name.find(".old"), name.npos) << entry.path();
      }
      mount_files("", Mount::local, 0);
      EXPECT_TRUE(save_eight(dir, "step7", 7).renamed);
    }
}

// Files of a killed writer on a mount that cannot rename files.
TEST(Mounts, WithATruncatedLatestNameTheCompleteCheckpoints) {
  const Scratch scratch;
  save_eight(scratch.folder(), "one", 1), save_eight(scratch.folder(), "two", 2);
  fs::remove(scratch.folder() / "two" / "manifest.json");
  for (const char* left : {"", "t\x01"}) {
    scratch.write("latest", left);
    expect_error(Exit::checkpoint, {"latest: is damaged (got", "complete checkpoints: one"},
                 [&] { checkpoint::CheckpointReader(scratch.folder(), "latest"); });
  }
  fs::remove(scratch.folder() / "latest");
  expect_error(Exit::checkpoint, {"the file 'latest'", "complete checkpoints: one"},
               [&] { checkpoint::CheckpointReader(scratch.folder(), "latest"); });
}

// Lock of a run: a stale one is taken over, and a held one is reported.
TEST(Mounts, WithoutRenamesHoldTheLockOfARun) {
  const Scratch scratch;
  const fs::path file = scratch.folder() / "run.lock";
  mount_files(scratch.folder().c_str(), Mount::renames_none, EPERM);
  std::string mine;
  {
    app::RunLock lock(file, {});
    mine = scratch.read("run.lock");
    expect_error(Exit::usage, {"another job uses this folder ("}, [&] { app::RunLock(file, {}); });
    EXPECT_FALSE(lock.require_held());
    fs::remove(file);
    EXPECT_TRUE(lock.require_held());  // created again
    EXPECT_EQ(scratch.read("run.lock"), mine);
  }
  EXPECT_FALSE(fs::exists(file));
  std::string said, dead = mine;
  dead[dead.find("\"begin\":\"") + 9] = 'x';  // an earlier process with the same PID
  scratch.write("run.lock", dead);
  {
    app::RunLock lock(file, {.say = [&](const std::string& text) { said += text; }});
    EXPECT_NE(said.find("took over"), said.npos);
    EXPECT_FALSE(lock.require_held());
    scratch.write("run.lock", dead);
    expect_error(Exit::checkpoint, {"took over this folder"}, [&] { lock.require_held(); });
    fs::remove(file);
  }
  {
    // A lock of another host is held as long as that host writes.
    app::RunLock held(file, {.beat = std::chrono::milliseconds(30)});
    std::string elsewhere = scratch.read("run.lock");
    elsewhere[elsewhere.find("\"host_id\":\"") + 11] = '_';
    const auto beat = [&] { return fs::exists(scratch.path("run.lock.beat")); };
    while (!beat()) std::this_thread::yield();
    const fs::path other = scratch.folder() / "other";
    scratch.write("other", elsewhere);
    std::atomic<bool> leaving{false};
    std::thread beats([&] {
      while (!leaving) {
        fs::remove(scratch.path("other.beat"));
        scratch.write("other.beat", mine);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
    expect_error(Exit::usage, {"another job uses this folder ("},
                 [&] { app::RunLock(other, {.patience = std::chrono::seconds(20)}); });
    leaving = true;
    beats.join();
    app::RunLock late(other, {.patience = std::chrono::milliseconds(200)});
  }
  mount_files("", Mount::local, 0);
}

// The host of an earlier attempt may be lost, and its lock cannot be checked.
TEST(Mounts, HoldLocksThatTheNextAttemptOfTheJobTakesOverAtOnce) {
  const Scratch scratch;
  const fs::path file = scratch.folder() / "run.lock";
  const auto of = [&](const char* job, int attempt) {
    return app::RunLock::Options{.job_id = job, .attempt = attempt};
  };
  const auto leave = [&](const app::RunLock::Options& options) {
    app::RunLock lock(file, options);
    std::string text = scratch.read("run.lock");
    text[text.find("\"host_id\":\"") + 11] = '_';  // of another host
    fs::remove(file);
    scratch.write("run.lock", text);
  };
  leave(of("one", 0));
  const auto begin = std::chrono::steady_clock::now();
  { app::RunLock lock(file, of("one", 1)); }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_FALSE(fs::exists(file));
  for (const auto& [job, attempt] : {std::pair{"one", 3}, {"", 4}, {"two", 4}}) {
    leave(of(job, attempt));
    app::RunLock::Options next = of(*job ? "one" : "", 3);
    next.patience = std::chrono::milliseconds(400);
    bool waited = false;
    next.say = [&](const std::string& text) { waited = waited || text.find("on another host") != text.npos; };
    { app::RunLock lock(file, next); }
    EXPECT_TRUE(waited) << job;
  }
}

TEST(Mounts, AreNotBlamedForAFullDisk) {
  const Scratch scratch;
  mount_files(scratch.folder().c_str(), Mount::renames_files, ENOSPC);
  expect_error(Exit::checkpoint, {"not saved, earlier checkpoints are unchanged", "cannot rename"},
               [&] { save_eight(scratch.folder(), "a", 1); });
  mount_files("", Mount::local, 0);
  EXPECT_TRUE(checkpoint::checkpoint_folders(scratch.folder()).empty());
}

}  // namespace
}  // namespace cleave::testing
