// Checkpoints that any layout can read: a folder of safetensors shards whose records are ranges of named
// whole tensors, and a JSON manifest with a checksum for each. Savers see names and ranges, never ranks or
// stages.
//
// A save goes to a temporary folder that is renamed when every byte is on disk, then the file `latest` is
// replaced: a run that is killed at any point leaves the checkpoint before it whole. Where the file system
// does not rename folders, the shards go to the last place at once and the manifest, which makes a checkpoint
// of them, behind them.
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

// Some elements of a named tensor; kind is "master", "exp_avg", ... Wherever they live, on a disk for
// example, they come and go in pieces through a little memory of the host.
struct Record {
  std::string kind, tensor;
  std::vector<int64_t> shape;  // of the whole tensor
  Elements elements;
  // Copy the record's elements [range) to or from memory of the host, of the record's type, before they
  // return.
  using Move = std::function<void(Range range, Tensor memory)>;
  Move read = {}, write = {};   // a saver needs the first, a loader the second
  DType dtype = DType::fp32;    // or int64, which a loader finds as it was saved
  bool may_be_missing = false;  // then a loader leaves it as it is
  int64_t bytes() const { return elements.numel() * size_of(dtype); }
};

// What a save made.
struct SavedCheckpoint {
  std::string name;     // of its folder
  bool renamed = true;  // false: the file system renames no folders, so it was written in its place
};

// Every rank gives its own records; together they must cover each tensor exactly once. `state` is JSON text
// that load_state returns. A checkpoint of the same tag is replaced, and other files in its folder stay; any
// other folder of that name is an error. Where folders are not renamed, the new
// one has the name "<tag>.2" (or .3, ...), and the old one goes when it is whole. Collective; only barriers
// and names cross the network. Throws Error(checkpoint), having removed what it wrote.
SavedCheckpoint save_checkpoint(const std::filesystem::path& dir, const std::string& tag,
                                const std::vector<Record>& records, const std::string& state,
                                comm::Communicator& world);

// Reads what it is asked for and little more: the blocks that a record's elements lie in, each of which is
// compared with its checksum. Const members may be called from several threads at once.
class CheckpointReader {
 public:
  // tag may be "latest". Throws Error(checkpoint) saying what is missing or damaged, and which complete
  // checkpoints exist; a name that would leave dir is damage, and so is a tensor of which the manifest lists
  // an element twice or not at all.
  CheckpointReader(const std::filesystem::path& dir, const std::string& tag);

  // That every shard is there, whole in size, and has what the manifest lists; checksums of tensors are left
  // for read(). Error(checkpoint) otherwise.
  void check_files() const;
  // Everything that is wrong, a line each, after reading every byte with so many threads: the file, the bytes
  // and what they should be. `progress`: after each part of a tensor, how many bytes have been read of how
  // many; from any thread, one at a time.
  using Progress = std::function<void(int64_t done, int64_t all)>;
  std::vector<std::string> faults(int threads, const Progress& progress = {}) const;

  const std::filesystem::path& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  const std::string& state() const { return manifest_.state; }
  // Shape of a stored tensor; empty when the checkpoint has no such tensor.
  std::vector<int64_t> shape(const std::string& kind, const std::string& tensor) const;
  // Writes the record from whichever shards hold its elements. Error(checkpoint) for a tensor that is not
  // stored or has another shape or type, and for bytes that do not match their checksum.
  void read(const Record& record) const;
  // All of them in this order, while threads read ahead. What is not stored is found before the first is
  // written.
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
  struct Fetch;
  void plan(const Record& record, std::vector<Fetch>& fetches) const;
  void plan(const Record& record, Range window, const Part& part, std::vector<Fetch>& fetches) const;
  int64_t window_end(const Record& record, int64_t begin, const Manifest::Whole& whole) const;
  void read(std::span<const Record> records, ReadAhead::Reader reader) const;
  void fill(std::span<const Fetch> fetches, ReadAhead& ahead, std::vector<std::byte>& memory) const;

  mutable std::mutex mutex_;               // of what follows
  mutable std::set<const Part*> checked_;  // of those with a checksum for all of it
  mutable std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;  // opened when first read
};

// What a rank says that lost another one in a save, or was the only one to begin it.
std::string while_saving(const std::filesystem::path& folder, const Error& error);

// Complete checkpoints in dir, oldest first: those whose manifest exists.
std::vector<std::string> list_checkpoints(const std::filesystem::path& dir);

// Folders in dir that are checkpoints or were, by name: with a manifest or a shard; not those of saves that
// did not end. A save that replaced a checkpoint and was killed in that moment leaves it as ".old.<name>".
// Throws std::filesystem::filesystem_error where dir cannot be read; none when there is no dir.
std::vector<std::string> checkpoint_folders(const std::filesystem::path& dir);

// Removes a checkpoint, its manifest first: what is left of it when that is cut short is no checkpoint. Files
// that no save wrote stay, and so does what a link leads to. Throws std::filesystem::filesystem_error.
void remove_checkpoint(const std::filesystem::path& folder);

// The name that the file `latest`, or another `pointer`, holds; or that of a complete checkpoint that a kill
// kept it from holding. Error(checkpoint) when there is no such file, or no name in it.
std::string latest_checkpoint(const std::filesystem::path& dir, const std::string& pointer = "latest");
// The file with what a pointer is about to hold.
std::filesystem::path pending(const std::filesystem::path& pointer);
// Makes the file `pointer` hold the name of a checkpoint in dir. Throws std::filesystem::filesystem_error or
// Error(checkpoint).
void point_at(const std::filesystem::path& dir, const std::string& pointer, const std::string& name);

// Whether a name stays in the folder that it is put into.
bool is_plain_name(std::string_view name);

}  // namespace cleave::checkpoint
