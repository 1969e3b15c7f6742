// Saves checkpoints in the background: ranks copy their records to host memory, and one thread per rank
// writes the copy while later steps change the originals. The files have the bytes that save_checkpoint()
// writes.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "comm/communicator.h"

namespace cleave::checkpoint {

class BackgroundSave {
 public:
  // Collective over `world`; the writer threads of all ranks use a separate group. `copy` is host memory for
  // all records of this rank, bytes_of() bytes, and outlives this object.
  BackgroundSave(Tensor copy, comm::Communicator& world);
  // Waits for the save in progress. During stack unwinding, cancels it on all ranks instead and leaves no
  // checkpoint; canceling takes as long as writing and syncing one piece of a shard.
  ~BackgroundSave();
  // Size of a copy of these records in bytes: consecutive, each aligned to its type.
  static int64_t bytes_of(const std::vector<Record>& records);
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Waits for the previous save and throws its error, if any; then copies the records and returns. Every rank
  // calls `written` on its writer thread when the checkpoint is complete. Collective. Throws
  // Error(checkpoint) on all ranks if the copy fails on one.
  using Written = std::function<void(const SavedCheckpoint&)>;
  void begin(const std::filesystem::path& dir, const std::string& tag, const std::vector<Record>& records,
             const std::string& state, const Written& written);
  // Waits for the save in progress and throws its error once. All ranks throw the same error unless a rank
  // was lost. Collective.
  void finish();
  // True if a save failed and finish() has not thrown its error yet. Local to this rank: others may see the
  // failure later.
  bool failed() const { return failed_; }

 private:
  std::vector<Record> copied(const std::vector<Record>& records);

  const Tensor copy_;
  const std::unique_ptr<comm::Communicator> group_;
  const int exceptions_;  // uncaught exceptions at construction
  std::atomic<bool> failed_{false}, given_up_{false};
  Stream writer_;  // destroyed first
};

}  // namespace cleave::checkpoint
