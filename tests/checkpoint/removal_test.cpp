// Removals keep files that no save wrote, in folders of any name.
#include "checkpoint/removal.h"

#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "tests/checkpoint/hand_made.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {
namespace fs = std::filesystem;

void save(const fs::path& dir, const std::string& tag, const std::string& state = "{}") {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    checkpoint::save_checkpoint(dir, tag, {given("master", "w", {12}, {part(12, 2, world.rank())})}, state,
                                world);
  });
}

void expect_not_saved(const fs::path& dir, const std::string& tag, std::string_view why) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    expect_error(Exit::checkpoint, {"not saved, earlier checkpoints are unchanged", why}, [&] {
      checkpoint::save_checkpoint(dir, tag, {given("master", "w", {12}, {part(12, 2, world.rank())})}, "{}",
                                  world);
    });
  });
}

std::string state_of(const fs::path& dir, const std::string& tag) {
  return checkpoint::CheckpointReader(dir, tag).state();
}

TEST(Removal, OfASaveKeepsFoldersOfTheUser) {
  for (const std::string folder : {"data", ".tmp.data", ".tmp.trial.data", ".old.data"})
    for (const std::string name : {"thesis.txt", "shard-final.safetensors", "manifest.json"}) {
      if (folder != "data" && name == "manifest.json") continue;  // looks like the rest of a killed save
      SCOPED_TRACE(folder + "/" + name);
      const Scratch scratch;
      fs::create_directories(scratch.folder() / folder);
      scratch.write(folder + "/" + name, "mine");
      expect_not_saved(scratch.folder(), "data", folder);
      EXPECT_EQ(scratch.read(folder + "/" + name), "mine");
      EXPECT_FALSE(fs::exists(scratch.folder() / "latest"));
    }
  const Scratch scratch;
  scratch.write("data", "a file");
  expect_not_saved(scratch.folder(), "data", "is not a checkpoint");
  EXPECT_EQ(scratch.read("data"), "a file");
}

TEST(Removal, OfACheckpointKeepsOtherFilesInItsFolder) {
  const Scratch scratch;
  save(scratch.folder(), "a", "1");
  fs::create_directories(scratch.folder() / "a/plots");
  scratch.write("a/notes.txt", "mine");
  save(scratch.folder(), "a", "2");
  EXPECT_EQ(state_of(scratch.folder(), "a"), "2");
  EXPECT_EQ(scratch.read("a/notes.txt"), "mine");
  EXPECT_FALSE(fs::exists(scratch.folder() / ".old.a"));
  checkpoint::remove_checkpoint(scratch.folder() / "a");
  EXPECT_EQ(checkpoint::others_in(scratch.folder() / "a", checkpoint::is_checkpoint_file),
            (std::vector<std::string>{"notes.txt", "plots"}));
  EXPECT_FALSE(fs::exists(scratch.folder() / "a/manifest.json"));
}

TEST(Removal, OfALinkKeepsItsTarget) {
  const Scratch scratch, other;
  save(other.folder(), "a", "1");
  fs::create_directory_symlink(other.folder() / "a", scratch.folder() / "a");
  save(scratch.folder(), "a", "2");
  EXPECT_EQ(state_of(scratch.folder(), "a"), "2");
  EXPECT_FALSE(fs::is_symlink(scratch.folder() / "a"));
  EXPECT_EQ(state_of(other.folder(), "a"), "1");
  for (const std::string name : {".tmp.b", ".tmp.trial.b", ".old.b", "b"})
    fs::create_directory_symlink(other.folder() / "a", scratch.folder() / name);
  save(scratch.folder(), "b", "3");
  EXPECT_EQ(state_of(other.folder(), "a"), "1");
  fs::create_directory_symlink(other.folder() / "a", scratch.folder() / "c");
  checkpoint::remove_checkpoint(scratch.folder() / "c");
  EXPECT_FALSE(fs::is_symlink(scratch.folder() / "c"));
  EXPECT_EQ(state_of(other.folder(), "a"), "1");
}

TEST(Removal, SelectsFilesByName) {
  for (const char* name : {"manifest.json", "manifest.json.tmp", "shard-00000.safetensors",
                           "shard-100000.safetensors", "shard-00001.json"})
    EXPECT_TRUE(checkpoint::is_checkpoint_file(name)) << name;
  for (const char* name : {"shard-.json", "shard-0.json", "shard-00000.safetensors.bak", "notes.json", ""})
    EXPECT_FALSE(checkpoint::is_checkpoint_file(name)) << name;
  for (const char* name :
       {"model.safetensors", "model.safetensors.index.json", "model-00001-of-00003.safetensors"})
    EXPECT_TRUE(checkpoint::is_weights_file(name)) << name;
  for (const char* name : {"model-backup.safetensors", "model-00001-of-00003.bin", "model-1-of-3.safetensors",
                           "config.json", "pytorch_model.bin"})
    EXPECT_FALSE(checkpoint::is_weights_file(name)) << name;
}

}  // namespace
}  // namespace cleave::testing
