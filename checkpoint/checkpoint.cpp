#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "checkpoint/checksum.h"
#include "checkpoint/removal.h"
#include "comm/from_peer.h"
#include "comm/together.h"
#include "core/input_file.h"
#include "core/printable.h"

namespace cleave::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 21;  // in memory at a time

void write_text(const fs::path& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  const bool ok = fd >= 0 && write(fd, text.data(), text.size()) == ssize_t(text.size()) && fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  require(ok, Exit::checkpoint, "{}: cannot be written: {}", path.string(), std::strerror(error));
}

void sync_folder(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);  // some mounts cannot sync folders; the rename is then as durable as they allow
  close(fd);
}

// Passes a record's elements to the sink through `memory`; returns the checksums of its blocks.
std::vector<uint64_t> stream_out(const Record& r, std::vector<std::byte>& memory,
                                 const NamedTensor::Sink& sink) {
  static_assert(kPieceElements % Manifest::kBlock == 0);
  const int64_t numel = r.elements.numel();
  std::vector<uint64_t> checksums;
  memory.resize(std::max(memory.size(), size_t(std::min(numel, kPieceElements) * size_of(r.dtype))));
  for (Range piece{0, 0}; piece.begin < numel; piece.begin = piece.end) {
    piece.end = std::min(numel, piece.begin + kPieceElements);
    const Tensor here(memory.data(), r.dtype, {piece.size()}, MemoryKind::host);
    r.read(piece, here);
    for (Range block{0, 0}; block.begin < piece.size(); block.begin = block.end) {
      block.end = std::min(piece.size(), block.begin + Manifest::kBlock);
      const Tensor held = here.slice(block);
      checksums.push_back(checksum_of(held.raw(), held.bytes()));
      sink(held);  // while it is in the core's cache
    }
  }
  return checksums;
}

// `save` is unique to this save, so that shards of two saves differ.
void write_shard(const fs::path& folder, const std::string& stem, const std::string& save,
                 const std::vector<Record>& records) {
  const std::string file = stem + ".safetensors";
  Manifest mine;
  std::vector<NamedTensor> tensors;
  std::vector<std::byte> memory;
  // Wide elements come first, so that all are aligned in the file.
  std::vector<std::reference_wrapper<const Record>> sorted(records.begin(), records.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Record& a, const Record& b) { return size_of(a.dtype) > size_of(b.dtype); });
  for (const Record& r : sorted) {
    const int64_t numel = r.elements.numel();
    if (numel == 0) continue;
    const Manifest::Name name{r.kind, r.tensor};
    tensors.push_back({name_in_shard(name, r.elements),
                       {numel},
                       Tensor(nullptr, r.dtype, {numel}, MemoryKind::host),
                       [&r, &file, &mine, &memory, name](const NamedTensor::Sink& sink) {
                         Manifest::Whole& whole = mine.tensors[name];
                         whole.shape = r.shape, whole.dtype = r.dtype;
                         whole.parts.push_back({file, r.elements, stream_out(r, memory, sink)});
                       }});
  }
  const WrittenFile written =
      write_safetensors(folder / file, tensors, {{"format", "cleave"}, {"save", save}});
  mine.shards[file] = {written.bytes, checksum_of(written.header)};
  write_text(folder / (stem + ".json"), mine.rank_text());
}

bool refuses_renaming(const std::error_code& error) {
  constexpr int kRefusals[] = {EPERM, EACCES, ENOSYS, EOPNOTSUPP, EXDEV, EINVAL, EMFILE};
  return std::find(std::begin(kRefusals), std::end(kRefusals), error.value()) != std::end(kRefusals);
}

// write_text() for mounts that cannot overwrite files. Keeps a file that already has the text.
void write_anew(const fs::path& path, const std::string& text) {
  std::error_code none;
  if (fs::is_regular_file(path, none) && InputFile(path.string(), Exit::checkpoint).text() == text) return;
  fs::remove(path);
  write_text(path, text);
}

// Writes a file atomically. If files cannot be renamed, a kill may leave a partial file.
void write_whole(const fs::path& path, const std::string& text) {
  const fs::path temporary = pending(path);
  write_anew(temporary, text);
  std::error_code error;
  fs::rename(temporary, path, error);
  if (!error) return;
  if (!refuses_renaming(error)) throw fs::filesystem_error("cannot rename", temporary, path, error);
  write_anew(path, text);
  fs::remove(temporary);
}

// Writes the file that point_at() renames, before the checkpoint has its final name. After a kill between
// both, latest_checkpoint() finds the checkpoint that `latest` does not name yet.
void announce(const fs::path& dir, const std::string& name) {
  write_anew(pending(dir / "latest"), name + "\n");
}

// Folder that a save writes, and the final name of the checkpoint.
struct Place {
  fs::path folder;
  SavedCheckpoint saved;
};

// Nth possible checkpoint name of a tag: the tag, "<tag>.2", ...
std::string nth_name(const std::string& tag, int n) { return n == 1 ? tag : fmt::format("{}.{}", tag, n); }

// Creates the folder. First tries to rename a folder that contains a file: some file systems rename no
// folders, others only empty ones.
Place make_place(const fs::path& dir, const std::string& tag) {
  const fs::path temporary = dir / (".tmp." + tag), trial = dir / (".tmp.trial." + tag);
  require_replaceable(dir / tag);
  require_removed(temporary, is_checkpoint_file), require_removed(trial, is_checkpoint_file);
  std::error_code refused;
  fs::create_directories(trial, refused);
  require(!refused, Exit::checkpoint,
          "{}: cannot be written ({}, expected a folder); choose a folder you may write to", dir.string(),
          refused.message());
  write_text(trial / "file", "");
  std::error_code error;
  fs::rename(trial, temporary, error);
  if (!error) {
    fs::remove(temporary / "file");
    return {temporary, {tag, true}};
  }
  if (!refuses_renaming(error)) throw fs::filesystem_error("cannot rename", trial, temporary, error);
  remove_checkpoint(trial);
  int n = 1;
  while (fs::exists(dir / nth_name(tag, n) / "manifest.json") ||
         !others_in(dir / nth_name(tag, n), is_checkpoint_file).empty())
    ++n;
  const fs::path folder = dir / nth_name(tag, n);
  require_removed(folder, is_checkpoint_file);  // of an unfinished save
  fs::create_directory(folder);
  return {folder, {nth_name(tag, n), false}};
}

// Collects the shard lists of all ranks on rank 0, checks that they cover every element of every tensor once,
// and writes the manifest.
void write_manifest(const Place& place, int ranks, const std::string& state) {
  Manifest manifest;
  manifest.state = state;
  for (int r = 0; r < ranks; ++r) {
    const fs::path part = place.folder / fmt::format("shard-{:05}.json", r);
    manifest.add_rank(InputFile(part.string(), Exit::checkpoint).text());
    fs::remove(part);
  }
  manifest.require_complete();
  const fs::path file = place.folder / "manifest.json";
  if (!place.saved.renamed) announce(place.folder.parent_path(), place.saved.name);
  place.saved.renamed ? write_text(file, manifest.text()) : write_whole(file, manifest.text());
}

// Makes `latest` name the complete checkpoint, and only then removes the replaced one.
void put_in_place(const fs::path& dir, const Place& place, const std::string& tag) {
  const fs::path target = dir / tag, old = dir / (".old." + tag);
  sync_folder(place.folder);
  if (place.saved.renamed) {
    require_removed(old, is_checkpoint_file);
    require_replaceable(target);  // already checked before the save; the folder may have changed
    if (fs::exists(fs::symlink_status(target))) fs::rename(target, old);
    announce(dir, place.saved.name);
    fs::rename(place.folder, target);
  }
  point_at(dir, "latest", place.saved.name);
  if (place.saved.renamed) {
    for (const std::string& name : others_in(old, is_checkpoint_file)) fs::rename(old / name, target / name);
    return remove_checkpoint(old);
  }
  bool behind = false;  // past the new one's number
  for (int n = 1;; ++n) {
    const fs::path other = dir / nth_name(tag, n);
    if (other.filename() == place.saved.name)
      behind = true;
    else if (fs::exists(other / "manifest.json") && is_checkpoint(other))
      remove_checkpoint(other);
    else if (behind)
      return;
  }
}

// Message from rank 0 to all ranks: the place of a save and its unique number.
struct Announcement {
  uint64_t number = 0;
  bool renamed = true;
  char name[247] = {};
};

Announcement announced(const Place& place, comm::Communicator& world) {
  std::random_device random;
  Announcement a{.number = uint64_t(random()) << 32 | random(), .renamed = place.saved.renamed};
  std::copy_n(place.saved.name.begin(), std::min(place.saved.name.size(), sizeof a.name - 1), a.name);
  Stream stream;
  world.broadcast(Tensor(&a, DType::uint8, {int64_t(sizeof a)}, MemoryKind::host), 0, stream,
                  {.what = "name of a save"});
  stream.synchronize();
  return a;
}

}  // namespace

int64_t bytes_of_checkpoint(const fs::path& folder) {
  std::error_code error;
  int64_t bytes = 0;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (const uintmax_t size = at->is_regular_file(error) ? at->file_size(error) : 0; !error)
      bytes += int64_t(size);
  return error ? 0 : bytes;
}

std::string while_saving(const fs::path& folder, const Error& e) {
  return fmt::format("saving checkpoint {} (all ranks together): {}", folder.string(), e.what());
}

SavedCheckpoint save_checkpoint(const fs::path& dir, const std::string& tag,
                                const std::vector<Record>& records, const std::string& state,
                                comm::Communicator& world) {
  Place place;  // on rank 0
  bool whole = false;
  // A rank that fails must still join the collective; otherwise the others wait until the deadline.
  auto step = [&](const std::function<void()>& body) {
    try {
      comm::together(world, Exit::checkpoint, body);
    } catch (const Error& e) {
      if (e.exit() == Exit::rank_lost) throw Error(e.exit(), while_saving(dir / tag, e));
      if (!place.folder.empty() && !whole) discard_own(place.folder, is_checkpoint_file);
      throw comm::AgreedError(Exit::checkpoint,
                              fmt::format("checkpoint {}: not saved, earlier checkpoints are unchanged: {}",
                                          (dir / tag).string(), e.what()));
    }
  };
  step([&] {
    require(is_plain_name(tag), Exit::checkpoint, "{}: is not a valid folder name", in_quotes(tag));
    if (world.rank() == 0) place = make_place(dir, tag);
  });
  const Announcement told = announced(place, world);
  const SavedCheckpoint saved{comm::text_from_peer(told.name), told.renamed};
  const fs::path folder = saved.renamed ? dir / (".tmp." + tag) : dir / saved.name;
  step([&] {
    write_shard(folder, fmt::format("shard-{:05}", world.rank()), fmt::format("{:016x}", told.number),
                records);
  });
  step([&] {
    if (world.rank() != 0) return;
    write_manifest(place, world.size(), state);
    whole = !place.saved.renamed;
    put_in_place(dir, place, tag);
  });
  return saved;
}

void point_at(const fs::path& dir, const std::string& pointer, const std::string& name) {
  write_whole(dir / pointer, name + "\n");
  sync_folder(dir);
}

void remove_checkpoint(const fs::path& folder) { remove_own(folder, is_checkpoint_file); }

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 200 && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(),
                      [](char c) { return c == '/' || uint8_t(c) < 0x20 || c == 0x7f; });
}

std::vector<std::string> checkpoint_folders(const fs::path& dir) {
  std::vector<std::string> names;
  if (!fs::exists(dir)) return names;
  require(fs::is_directory(dir), Exit::usage,
          "{}: is a file (expected a folder of checkpoints); choose another name, or move the file",
          dir.string());
  for (const auto& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_directory() || name.starts_with(".tmp.")) continue;
    if (fs::exists(entry.path() / "manifest.json") || fs::exists(entry.path() / "shard-00000.safetensors"))
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> list_checkpoints(const fs::path& dir) {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    const auto written = fs::last_write_time(entry.path() / "manifest.json", error);
    if (!name.starts_with(".") && !error) found.emplace_back(written, name);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (auto& [time, name] : found) names.push_back(std::move(name));
  return names;
}

}  // namespace cleave::checkpoint
