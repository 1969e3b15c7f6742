#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checksum.h"
#include "core/input_file.h"
#include "core/printable.h"

namespace cleave::checkpoint {
namespace fs = std::filesystem;
namespace {

std::string text_of(const fs::path& path) { return InputFile(path.string(), Exit::checkpoint).text(); }

// Throws Error(checkpoint) if the system cannot answer, as for a folder without access rights.
bool is_there(const fs::path& path) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  require(!error, Exit::checkpoint, "{}: cannot be examined: {}", path.string(), error.message());
  return there;
}

std::string complete_in(const fs::path& dir) {
  std::string names;
  for (const std::string& c : list_checkpoints(dir)) names += (names.empty() ? "" : ", ") + printable(c);
  return names.empty() ? "none" : names;
}

// Names the checkpoint folder one level below `dir`, or the parent if `dir` is a checkpoint. Empty if neither
// exists.
std::string near_folder(const fs::path& dir, const std::string& pointer) {
  std::error_code error;
  if (fs::is_regular_file(dir / "manifest.json", error))
    return fmt::format("; {} is a checkpoint itself: give the folder above it, and --tag {}", dir.string(),
                       printable(dir.filename().string()));
  for (fs::directory_iterator entry(dir, fs::directory_options::skip_permission_denied, error), end;
       !error && entry != end; entry.increment(error))
    if (std::error_code none; fs::is_regular_file(entry->path() / pointer, none))
      return fmt::format("; its folder {0} has one: give {1}", printable(entry->path().filename().string()),
                         printable(entry->path().string()));
  return {};
}

std::string name_in(const fs::path& pointer) {
  std::string name = text_of(pointer);
  return name.erase(name.find_last_not_of(" \n\r\t") + 1);
}

}  // namespace

fs::path pending(const fs::path& pointer) { return pointer.string() + ".tmp"; }

std::string latest_checkpoint(const fs::path& dir, const std::string& pointer) {
  require(is_there(dir), Exit::checkpoint,
          "{}: does not exist; give the --output folder of a training (eval, generate and digest also accept "
          "a model folder with config.json and weights)",
          dir.string());
  const fs::path next = pending(dir / pointer);
  if (is_there(next)) {
    const std::string name = name_in(next);
    if (is_plain_name(name) && is_there(dir / name / "manifest.json")) return name;
  }
  require(
      is_there(dir / pointer), Exit::checkpoint,
      "{}: the file '{}', which names the checkpoint to resume from, is missing; complete checkpoints: {}{}",
      dir.string(), pointer, complete_in(dir), near_folder(dir, pointer));
  const std::string name = name_in(dir / pointer);
  require(
      is_plain_name(name), Exit::checkpoint,
      "{}: is damaged (got {}, expected the name of a checkpoint in this folder); complete checkpoints: {}",
      (dir / pointer).string(), in_quotes(name), complete_in(dir));
  return name;
}

CheckpointReader::CheckpointReader(const fs::path& dir, const std::string& tag) {
  require(is_plain_name(tag), Exit::checkpoint, "{}: is not the name of a checkpoint in {}", in_quotes(tag),
          dir.string());
  // A checkpoint folder may also be named "best".
  std::error_code none;
  const bool points = tag == "latest" || (tag == "best" && fs::is_regular_file(dir / tag, none));
  path_ = dir / (points ? latest_checkpoint(dir, tag) : tag);
  if (!is_there(path_ / "manifest.json")) {
    fail(Exit::checkpoint, "checkpoint {}: does not exist or is incomplete; complete checkpoints in {}: {}",
         path_.string(), dir.string(), complete_in(dir));
  }
  try {
    manifest_ = Manifest::read(text_of(path_ / "manifest.json"));
  } catch (const Error& e) {
    fail(Exit::checkpoint, "{}: damaged manifest: {}{}", (path_ / "manifest.json").string(),
         printable(e.what()), others());
  } catch (const std::exception&) {  // bad_alloc or length_error
    fail(Exit::checkpoint, "{}: damaged manifest: it needs more memory than this machine has{}",
         (path_ / "manifest.json").string(), others());
  }
}

std::string CheckpointReader::others() const {
  std::vector<std::string> names = list_checkpoints(path_.parent_path());
  std::erase(names, path_.filename().string());
  for (std::string& name : names) name = printable(name);
  return names.empty() ? fmt::format("; {} has no other complete checkpoint", path_.parent_path().string())
                       : fmt::format("; load another checkpoint of {} with tag (complete: {})",
                                     path_.parent_path().string(), fmt::join(names, ", "));
}

void CheckpointReader::check_files() const {
  for (const auto& [tensor, whole] : manifest_.tensors)
    for (const Part& part : whole.parts) require_held(tensor, part);
}

std::vector<std::string> CheckpointReader::faults(int threads, const Progress& progress) const {
  struct Job {
    const Manifest::Name* tensor;
    const Part* part;
    std::string fault = {};
  };
  std::vector<Job> jobs;
  for (const auto& [tensor, whole] : manifest_.tensors)
    for (const Part& part : whole.parts) jobs.push_back({&tensor, &part});
  std::atomic<size_t> next{0};
  std::mutex mutex;
  int64_t done = 0;
  const int64_t all = manifest_.bytes();
  auto work = [&] {
    std::vector<std::byte> memory;
    for (size_t at = next++; at < jobs.size(); at = next++) {
      Job& job = jobs[at];
      try {
        check_all(*job.tensor, *job.part, memory);
      } catch (const Error& e) {
        job.fault = e.what();
      }
      const std::lock_guard lock(mutex);
      done += job.part->elements.numel() * element_bytes(*job.tensor);
      if (progress) progress(done, all);
    }
  };
  {
    std::vector<std::jthread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(work);
    work();
  }
  std::vector<std::string> faults;
  for (Job& job : jobs)  // report a shard that cannot be used once, not per part
    if (!job.fault.empty() && std::find(faults.begin(), faults.end(), job.fault) == faults.end())
      faults.push_back(std::move(job.fault));
  return faults;
}

std::vector<int64_t> CheckpointReader::shape(const std::string& kind, const std::string& tensor) const {
  const auto at = manifest_.tensors.find({kind, tensor});
  return at == manifest_.tensors.end() ? std::vector<int64_t>{} : at->second.shape;
}

const SafetensorsFile& CheckpointReader::file(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<SafetensorsFile>& opened = files_[name];
  if (opened) return *opened;
  auto file = std::make_unique<SafetensorsFile>(path_ / name);
  require_whole(name, *file);
  opened = std::move(file);
  return *opened;
}

void CheckpointReader::require_whole(const std::string& name, const SafetensorsFile& file) const {
  const auto shard = manifest_.shards.find(name);
  if (shard == manifest_.shards.end()) return;  // before version 3
  require(file.bytes() == shard->second.bytes, Exit::checkpoint,
          "{}: the size differs from the manifest (got {} bytes, expected {}); the file is damaged, or "
          "belongs to another checkpoint",
          file.path().string(), file.bytes(), shard->second.bytes);
  require(checksum_of(file.header()) == shard->second.header, Exit::checkpoint,
          "{}: bytes 8 to {}, the header, do not match their checksum; the file is damaged, or belongs to "
          "another checkpoint",
          file.path().string(), 8 + file.header().size());
}

int64_t CheckpointReader::element_bytes(const Manifest::Name& tensor) const {
  return size_of(manifest_.tensors.at(tensor).dtype);
}

void CheckpointReader::require_held(const Manifest::Name& tensor, const Part& part) const {
  const SafetensorsFile& shard = file(part.file);
  const auto at = shard.tensors().find(name_in_shard(tensor, part.elements));
  require(at != shard.tensors().end() && at->second.dtype == manifest_.tensors.at(tensor).dtype &&
              at->second.end - at->second.begin == part.elements.numel() * element_bytes(tensor),
          Exit::checkpoint, "{}: {} of {} differs from the manifest", shard.path().string(), tensor.first,
          tensor.second);
}

// Checks the blocks of a part from element `begin` on.
void CheckpointReader::check(const Manifest::Name& tensor, const Part& part, int64_t begin,
                             std::span<const std::byte> held) const {
  const int64_t each = element_bytes(tensor), block = manifest_.block * each, first = begin * each;
  for (int64_t at = 0; at < int64_t(held.size()); at += block) {
    const int64_t n = std::min(block, int64_t(held.size()) - at);
    if (checksum_of(held.data() + at, n) == part.checksums[size_t((first + at) / block)]) continue;
    const SafetensorsFile& shard = file(part.file);
    const std::string name = name_in_shard(tensor, part.elements);
    const int64_t from = shard.offset(name) + first + at;
    fail(Exit::checkpoint, "{}: bytes {} to {}, of {}, do not match their checksum; the file is damaged",
         shard.path().string(), from, from + n, name);
  }
}

void CheckpointReader::check_once(const Manifest::Name& tensor, const Part& part) const {
  const auto seen = [&](bool now) {
    const std::lock_guard lock(mutex_);
    if (now) checked_.insert(&part);
    return checked_.contains(&part);
  };
  if (seen(false)) return;
  std::vector<std::byte> memory;
  check_all(tensor, part, memory);
  seen(true);
}

// Reads pieces that stay in a core's cache until they are checked.
void CheckpointReader::check_all(const Manifest::Name& tensor, const Part& part,
                                 std::vector<std::byte>& memory) const {
  require_held(tensor, part);
  const SafetensorsFile& shard = file(part.file);
  const std::string name = name_in_shard(tensor, part.elements);
  const int64_t each = element_bytes(tensor), bytes = part.elements.numel() * each, block = manifest_.block;
  const int64_t most = (block ? block : Manifest::kBlock) * each;
  memory.resize(std::max(memory.size(), size_t(std::min(bytes, most))));
  Checksum whole;
  for (int64_t done = 0; done < bytes; done += most) {
    const auto held = std::span(memory).first(size_t(std::min(bytes - done, most)));
    shard.read(name, done, held);
    if (block)
      check(tensor, part, done / each, held);
    else
      whole.add(held.data(), int64_t(held.size()));
  }
  require(block || whole.value() == part.checksums.front(), Exit::checkpoint,
          "{}: bytes {} to {}, of {}, do not match their checksum; the file is damaged",
          shard.path().string(), shard.offset(name), shard.offset(name) + bytes, name);
}

}  // namespace cleave::checkpoint
