// Checkpoints that any layout can read: a folder of safetensors shards whose records are ranges of named
// whole tensors, and a JSON manifest with a checksum for each. Savers see names and ranges, never ranks or
// stages.
//
// A save goes to a temporary folder that is renamed when every byte is on disk, then the file `latest` is
// replaced: a run that is killed at any point leaves the checkpoint before it whole.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/elements.h"
#include "checkpoint/safetensors.h"
#include "comm/communicator.h"
#include "device/tensor.h"

namespace cleave {

// Some elements of a named tensor; kind is "master", "exp_avg", ... Wherever they live, on a disk for
// example, they come and go in pieces through a little memory of the host.
struct Record {
  std::string kind, tensor;
  std::vector<int64_t> shape;  // of the whole tensor
  Elements elements;
  // Copy the record's elements [range) to or from fp32 memory of the host before they return.
  using Move = std::function<void(Range range, Tensor memory)>;
  Move read, write;  // a saver needs the first, a loader the second
};

// Every rank gives its own records; together they must cover each tensor exactly once. `state` is JSON text
// that load_state returns. Collective; only barriers cross the network. Throws Error(checkpoint), having
// removed what it wrote.
void save_checkpoint(const std::filesystem::path& dir, const std::string& tag,
                     const std::vector<Record>& records, const std::string& state, Communicator& world);

class CheckpointReader {
 public:
  // tag may be "latest". Throws Error(checkpoint) saying what is missing or damaged, and which complete
  // checkpoints exist; a name that would leave dir is damage, and so is a tensor of which the manifest lists
  // an element twice or not at all.
  CheckpointReader(const std::filesystem::path& dir, const std::string& tag);

  // That every shard is there, whole in size, and has what the manifest lists; checksums are left for read().
  // Error(checkpoint) otherwise.
  void check_files() const;
  // The same, and every checksum.
  void verify_all() const;

  const std::filesystem::path& path() const { return path_; }
  const std::string& state() const { return state_; }
  // Shape of a stored tensor; empty when the checkpoint has no such tensor.
  std::vector<int64_t> shape(const std::string& kind, const std::string& tensor) const;
  // Kinds and tensor names stored.
  std::vector<std::pair<std::string, std::string>> tensors() const;
  // Writes the record from whichever shards hold its elements, verifying their checksums when they are first
  // read. Error(checkpoint) for a tensor that is not stored or has another shape.
  void read(const Record& record) const;

 private:
  struct Stored {
    std::string file, name;
    Elements elements;
    uint64_t checksum;
  };
  struct Whole {
    std::vector<int64_t> shape;
    std::vector<Stored> parts;
  };
  using Name = std::pair<std::string, std::string>;  // kind and tensor
  std::filesystem::path path_;
  std::string state_;
  const SafetensorsFile& file(const std::string& name) const;

  void read_manifest(const std::string& text);
  void require_complete() const;
  void verify(const Stored& stored) const;
  int64_t fill(Tensor window, const Record& record, int64_t begin, const Stored& stored) const;

  std::map<Name, Whole> tensors_;
  mutable std::set<std::string> verified_;                                 // file and record
  mutable std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;  // opened when first read
};

// Complete checkpoints in dir, oldest first: those whose manifest exists.
std::vector<std::string> list_checkpoints(const std::filesystem::path& dir);

// Folders in dir that are checkpoints or were, by name: with a manifest or a shard; not those of saves that
// did not end. A save that replaced a checkpoint and was killed in that moment leaves it as ".old.<name>".
// Throws std::filesystem::filesystem_error where dir cannot be read; none when there is no dir.
std::vector<std::string> checkpoint_folders(const std::filesystem::path& dir);

// The name that the file `latest` holds. Error(checkpoint) when there is no such file, or no name in it.
std::string latest_checkpoint(const std::filesystem::path& dir);

// Whether a name stays in the folder that it is put into.
bool is_plain_name(std::string_view name);

}  // namespace cleave
