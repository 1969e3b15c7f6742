// A checkpoint that is written behind the training: the ranks copy their records to memory of the host, and a
// thread of each writes the copy while later steps change what was copied. The bytes are those that
// save_checkpoint() writes in the same place.
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
  // Collective over world: the writers of all ranks talk in a group of their own. `copy` is memory of the
  // host, bytes_of() all that this rank saves, and outlives this.
  BackgroundSave(Tensor copy, comm::Communicator& world);
  // Waits until what was begun is written. While an exception is under way it is given up instead, on all
  // ranks, and leaves no checkpoint; that takes as long as a piece of a shard takes to be written and synced.
  ~BackgroundSave();
  // The bytes of a copy of these records: one behind another, each where its type is aligned.
  static int64_t bytes_of(const std::vector<Record>& records);
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Waits for the save before, and throws what went wrong in it; then copies the records, and returns.
  // `written` is called on the writing thread of every rank when the checkpoint is whole. Collective. Throws
  // Error(checkpoint), on every rank when a copy fails on one.
  using Written = std::function<void(const SavedCheckpoint&)>;
  void begin(const std::filesystem::path& dir, const std::string& tag, const std::vector<Record>& records,
             const std::string& state, const Written& written);
  // Waits until nothing is being written, and throws what went wrong, once; alike on all ranks unless one was
  // lost. Collective.
  void finish();
  // Whether what was begun could not be saved, and nobody was told by finish() yet. On this rank: the others
  // may learn of it later.
  bool failed() const { return failed_; }

 private:
  std::vector<Record> copied(const std::vector<Record>& records);

  const Tensor copy_;
  const std::unique_ptr<comm::Communicator> group_;
  const int exceptions_;  // under way when this was made
  std::atomic<bool> failed_{false}, given_up_{false};
  Stream writer_;  // ends first
};

}  // namespace cleave::checkpoint
