// Kills a save, or fills the disk, at each call that changes a file: the newest complete checkpoint always
// loads. Also tests background saves, and mounts that cannot rename folders or files.
#include <gtest/gtest.h>

#include <signal.h>

#include <algorithm>
#include <cerrno>

#include "checkpoint/background_save.h"
#include "checkpoint/output_file.h"
#include "tests/checkpoint/file_faults.h"
#include "tests/checkpoint/hand_made.h"
#include "tests/comm/processes.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {
namespace fs = std::filesystem;
using cleave::comm::test::Ended;

constexpr int64_t kNumel = 1000;
constexpr int64_t kLarge =
    6 * checkpoint::OutputFile::kPiece / int64_t(sizeof(float)) + 5;  // a thread writes files of this size

// A tensor over all ranks, filled with this value.
checkpoint::Record record_of(float value, int64_t numel, const comm::Communicator& world) {
  return {"master",
          "w",
          {numel},
          {part(numel, world.size(), world.rank())},
          [value](Range r, Tensor to) { std::fill_n(to.as<float>(), r.size(), value); },
          {}};
}

void save(const fs::path& dir, const std::string& tag, float value, int64_t numel,
          comm::Communicator& world) {
  checkpoint::save_checkpoint(dir, tag, {record_of(value, numel, world)}, "{}", world);
}

// Saves in the background; `written` runs on the writer thread.
void save_behind(const fs::path& dir, const std::string& tag, float value, int64_t numel,
                 comm::Communicator& world, const checkpoint::BackgroundSave::Written& written) {
  std::vector<float> memory(static_cast<size_t>(numel));
  const std::vector<checkpoint::Record> records = {record_of(value, numel, world)};
  const int64_t bytes = checkpoint::BackgroundSave::bytes_of(records);
  checkpoint::BackgroundSave background(Tensor(memory.data(), DType::uint8, {bytes}, MemoryKind::host),
                                        world);
  background.begin(dir, tag, records, "{}", written);
  background.finish();
}

// Value of a checkpoint, or -1 if it cannot be read.
float value_in(const fs::path& dir, const std::string& tag) {
  try {
    const checkpoint::CheckpointReader reader(dir, tag);
    const std::vector<int64_t> shape = reader.shape("master", "w");
    const std::vector<float> held = read(reader, "master", "w", shape, {{0, checkpoint::numel_of(shape)}});
    return std::all_of(held.begin(), held.end(), [&](float v) { return v == held[0]; }) ? held[0] : -2;
  } catch (const Error& e) {
    EXPECT_EQ(e.exit(), Exit::checkpoint) << e.what();
    return -1;
  }
}

struct Attempt {
  int ranks, victim;
  bool same_name;  // as the previous checkpoint, which is replaced; else it is removed after the save
  FileFault fault;
  bool behind = false;  // background save
  Mount mount = Mount::local;
  int64_t numel = kNumel;
};

// Saves on one rank; writes to `beyond` if the save has fewer calls than `nth`.
void save_and_break(const fs::path& dir, const fs::path& beyond, const Attempt& a, int nth,
                    comm::Communicator& world) {
  const bool breaks = world.rank() == a.victim;
  mount_files(dir.c_str(), a.mount, EPERM);
  if (breaks) break_file_call(dir.c_str(), nth, a.fault);
  const std::string tag = a.same_name ? "one" : "two";
  const checkpoint::BackgroundSave::Written written = [&](const checkpoint::SavedCheckpoint&) {
    if (world.rank() == 0 && !a.same_name) checkpoint::remove_checkpoint(dir / "one");
  };
  if (a.behind) {
    save_behind(dir, tag, 2, a.numel, world, written);
  } else {
    save(dir, tag, 2, a.numel, world);
    written({});
  }
  if (breaks && file_calls() < nth) std::ofstream{beyond};
}

// True if the victim's save has an `nth` call. Checks the folder afterwards.
bool try_save(const Attempt& a, int nth) {
  const Scratch scratch, notes;
  const fs::path& dir = scratch.folder();
  const fs::path beyond = notes.folder() / "beyond";
  comm::run_ranks(3, [&](comm::Communicator& world) {
    save(dir, "one", 1, kNumel, world);
  });  // several files, in any order
  comm::ConnectOptions options;
  options.transport = comm::TransportChoice::shm;
  auto children = comm::test::start_ranks(a.ranks, options, [&](comm::World& world) {
    save_and_break(dir, beyond, a, nth, world.communicator());
  });
  const std::vector<Ended> ends = comm::test::wait_all(children);
  const bool killed = a.fault == FileFault::kill || a.fault == FileFault::kill_late;
  const bool through = fs::exists(beyond);
  if (killed && !through) {
    EXPECT_EQ(ends[size_t(a.victim)].exit, -SIGKILL) << ends[size_t(a.victim)].message;
  }
  for (const Ended& e : ends) EXPECT_NE(e.message, "still runs after the limit");

  float newest = 0;
  for (const std::string& tag : checkpoint::checkpoint_folders(dir)) {
    if (!fs::exists(dir / tag / "manifest.json")) continue;  // resume skips it
    const float value = value_in(dir, tag);
    // If files cannot be renamed, the checksum reveals a truncated manifest.
    const bool cut = a.mount == Mount::renames_none && value == -1;
    EXPECT_TRUE(cut || value >= 1) << tag;
    newest = std::max(newest, value);
  }
  EXPECT_GE(newest, 1);
  // No checkpoint is skipped silently: `latest` gives the newest, or none during its replacement.
  const float pointed = value_in(dir, "latest");
  EXPECT_TRUE(pointed == newest || pointed == -1) << pointed << " of " << newest;
  const bool saved = std::all_of(ends.begin(), ends.end(), [](const Ended& e) { return e.exit == 0; });
  if (saved) {
    EXPECT_EQ(value_in(dir, "latest"), 2);
  }
  // The remaining files do not disturb the next save.
  comm::run_ranks(1, [&](comm::Communicator& world) { save(dir, "three", 3, kNumel, world); });
  EXPECT_EQ(value_in(dir, "latest"), 3);
  return !through;
}

class KilledSaves : public ::testing::TestWithParam<Attempt> {};

TEST_P(KilledSaves, LeaveTheNewestCompleteCheckpointWhole) {
  int nth = 1;
  while (try_save(GetParam(), nth) && !HasFailure() && nth < 500) ++nth;
  EXPECT_GT(nth, 5) << "calls that change files are not seen";
  EXPECT_LT(nth, 500) << "the save does not come through without a fault";
  EXPECT_FALSE(HasFailure()) << "at call " << nth;
}

std::vector<Attempt> attempts() {
  std::vector<Attempt> all;
  for (const FileFault fault :
       {FileFault::error, FileFault::cut_short, FileFault::kill, FileFault::kill_late})
    for (const auto& [ranks, victim] : {std::pair{1, 0}, {2, 0}, {2, 1}, {4, 3}})
      for (const bool same_name : {false, true})
        for (const bool behind : {false, true})
          if (!behind || !same_name) all.push_back({ranks, victim, same_name, fault, behind});
  for (const FileFault fault : {FileFault::error, FileFault::cut_short, FileFault::kill})
    for (const Mount mount : {Mount::renames_files, Mount::renames_none})
      for (const auto& [ranks, victim] : {std::pair{1, 0}, {2, 1}})
        for (const bool same_name : {false, true})
          all.push_back({ranks, victim, same_name, fault, ranks == 1, mount});
  for (const FileFault fault :
       {FileFault::error, FileFault::cut_short, FileFault::kill, FileFault::kill_late})
    all.push_back({1, 0, false, fault, fault == FileFault::error, Mount::local, kLarge});
  return all;
}
std::string name_of(const ::testing::TestParamInfo<Attempt>& info) {
  constexpr const char* names[] = {"none", "error", "full", "killed", "killed_late"};
  constexpr const char* mounts[] = {"", "_no_folders", "_no_renames"};
  return fmt::format("rank{}of{}_{}{}{}{}{}", info.param.victim, info.param.ranks,
                     names[size_t(info.param.fault)], info.param.same_name ? "_same_name" : "",
                     info.param.behind ? "_behind" : "", mounts[size_t(info.param.mount)],
                     info.param.numel == kLarge ? "_large" : "");
}
INSTANTIATE_TEST_SUITE_P(, KilledSaves, ::testing::ValuesIn(attempts()), name_of);

}  // namespace
}  // namespace cleave::testing
