// Checkpoints that any layout can read: a folder of safetensors shards with ranges of named whole tensors,
// and a JSON manifest with checksums. Savers pass names and ranges, never ranks or stages.
//
// A save writes to a temporary folder, renames it after all bytes are on disk, and then replaces the file
// `latest`; a kill at any point leaves the previous checkpoint complete. If the file system cannot rename
// folders, the shards go directly to the final folder, and the manifest, which makes the folder a checkpoint,
// is written last.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/elements.h"
#include "checkpoint/manifest.h"
#include "checkpoint/read_ahead.h"
#include "checkpoint/safetensors.h"
#include "comm/communicator.h"
#include "device/tensor.h"

namespace cleave::checkpoint {

// Elements of a named tensor; kind is "master", "exp_avg", ... The elements may be in any memory or on disk:
// they are moved in pieces through a small host buffer.
struct Record {
  std::string kind, tensor;
  std::vector<int64_t> shape;  // of the whole tensor
  Elements elements;
  // Copies the record's elements [range) to or from host memory of the record's type. Done on return.
  using Move = std::function<void(Range range, Tensor memory)>;
  Move read = {}, write = {};   // a saver needs `read`, a loader `write`
  DType dtype = DType::fp32;    // or int64; must equal the stored type
  bool may_be_missing = false;  // a loader skips it if the checkpoint lacks it
  int64_t bytes() const { return elements.numel() * size_of(dtype); }
};

// Result of a save.
struct SavedCheckpoint {
  std::string name;     // of the checkpoint folder
  bool renamed = true;  // false: the file system cannot rename folders; written in place
};

// Every rank passes its own records; together they must cover each tensor exactly once. `state` is JSON text
// (CheckpointReader::state()). Replaces a checkpoint of the same tag and keeps other files in its folder; any
// other folder of that name is an error. If folders cannot be renamed, the new checkpoint is named "<tag>.2"
// (or .3, ...), and the old one is removed when the new one is complete. Collective; only barriers and names
// cross the network. On failure, removes the files that it wrote and throws Error(checkpoint).
SavedCheckpoint save_checkpoint(const std::filesystem::path& dir, const std::string& tag,
                                const std::vector<Record>& records, const std::string& state,
                                comm::Communicator& world);

// Returns the bytes of all files of a checkpoint folder; 0 if they cannot be read.
int64_t bytes_of_checkpoint(const std::filesystem::path& folder);

// Reads only the blocks that contain a record's elements, and compares each block with its checksum. Const
// members are safe to call from several threads.
class CheckpointReader {
 public:
  // `tag` may be "latest". Throws Error(checkpoint), which names missing or damaged files and lists the
  // complete checkpoints. A name that points outside `dir` counts as damage, as does a manifest that lists an
  // element of a tensor twice or not at all.
  CheckpointReader(const std::filesystem::path& dir, const std::string& tag);

  // Checks that every shard exists, has the right size, and holds the tensors of the manifest. Does not check
  // checksums of tensors; read() does. Throws Error(checkpoint).
  void check_files() const;
  // Reads every byte with `threads` threads and returns all faults, one line each: file, byte range, and
  // expected contents. Calls `progress` with the bytes read so far and in total after each part of a tensor,
  // from any thread, one call at a time.
  using Progress = std::function<void(int64_t done, int64_t all)>;
  std::vector<std::string> faults(int threads, const Progress& progress = {}) const;

  const std::filesystem::path& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  const std::string& state() const { return manifest_.state; }
  // Shape of a stored tensor; empty if the checkpoint does not have the tensor.
  std::vector<int64_t> shape(const std::string& kind, const std::string& tensor) const;
  // Writes the record from the shards that hold its elements. Throws Error(checkpoint) if the tensor is not
  // stored, has another shape or type, or does not match its checksum.
  void read(const Record& record) const;
  // Reads all records in this order while threads read ahead. Detects missing tensors before it writes the
  // first record. The error about a damaged file lists the other complete checkpoints of the folder.
  void read(std::span<const Record> records) const;

 private:
  using Part = Manifest::Part;
  std::filesystem::path path_;
  Manifest manifest_;

  const SafetensorsFile& file(const std::string& name) const;
  void require_whole(const std::string& name, const SafetensorsFile& file) const;
  void require_held(const Manifest::Name& tensor, const Part& part) const;
  int64_t element_bytes(const Manifest::Name& tensor) const;
  void check(const Manifest::Name& tensor, const Part& part, int64_t begin,
             std::span<const std::byte> held) const;
  void check_all(const Manifest::Name& tensor, const Part& part, std::vector<std::byte>& memory) const;
  void check_once(const Manifest::Name& tensor, const Part& part) const;
  // The end of an error about a damaged checkpoint: other complete checkpoints of its folder.
  std::string others() const;
  struct Fetch;
  void require_stored(const Record& record) const;
  void plan(const Record& record, std::vector<Fetch>& fetches) const;
  void plan(const Record& record, Range window, const Part& part, std::vector<Fetch>& fetches) const;
  int64_t window_end(const Record& record, int64_t begin, const Manifest::Whole& whole) const;
  void read(std::span<const Record> records, ReadAhead::Reader reader) const;
  void read_planned(std::span<const Record> records, ReadAhead::Reader reader) const;
  void fill(std::span<const Fetch> fetches, ReadAhead& ahead, std::vector<std::byte>& memory) const;

  mutable std::mutex mutex_;               // guards the members below
  mutable std::set<const Part*> checked_;  // parts with one checksum (before version 3)
  mutable std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;  // opened on first read
};

// Error message of a rank that lost another one during a save, or that was alone in starting it.
std::string while_saving(const std::filesystem::path& folder, const Error& error);

// Complete checkpoints in `dir`, oldest first: those with a manifest.
std::vector<std::string> list_checkpoints(const std::filesystem::path& dir);

// Folders in `dir` that are or were checkpoints, by name: they have a manifest or a shard. Excludes folders
// of unfinished saves. A save that is killed while it replaces a checkpoint leaves the old one as
// ".old.<name>". Throws std::filesystem::filesystem_error if `dir` cannot be read; empty if `dir` does not
// exist.
std::vector<std::string> checkpoint_folders(const std::filesystem::path& dir);

// Removes a checkpoint, its manifest first, so that an interrupted removal does not leave a checkpoint. Keeps
// files that no save wrote, and targets of links. Throws std::filesystem::filesystem_error.
void remove_checkpoint(const std::filesystem::path& folder);

// Name in the file `latest` or another `pointer`, or the name of a complete checkpoint if a kill prevented
// the pointer's update. Throws Error(checkpoint) if the file is missing or has no name.
std::string latest_checkpoint(const std::filesystem::path& dir, const std::string& pointer = "latest");
// Temporary file with the next contents of a pointer.
std::filesystem::path pending(const std::filesystem::path& pointer);
// Makes the file `pointer` name a checkpoint in `dir`. Throws std::filesystem::filesystem_error or
// Error(checkpoint).
void point_at(const std::filesystem::path& dir, const std::string& pointer, const std::string& name);

// True if the name cannot point outside its folder.
bool is_plain_name(std::string_view name);

}  // namespace cleave::checkpoint
