#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "checkpoint/checksum.h"
#include "comm/together.h"
#include "core/input_file.h"
#include "core/printable.h"

namespace cleave {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 21;  // in memory at a time

void write_text(const fs::path& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const bool ok = fd >= 0 && write(fd, text.data(), text.size()) == ssize_t(text.size()) && fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  require(ok, Exit::checkpoint, "cannot write {}: {}", path.string(), std::strerror(error));
}

void sync_folder(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);  // some mounts refuse to sync folders; the rename below is then as durable as they allow
  close(fd);
}

// Gives a record's elements to the sink, through `memory`; returns the checksums of its blocks.
std::vector<uint64_t> stream_out(const Record& r, std::vector<float>& memory, const NamedTensor::Sink& sink) {
  static_assert(kPieceElements % Manifest::kBlock == 0);
  const int64_t numel = r.elements.numel();
  std::vector<uint64_t> checksums;
  memory.resize(size_t(std::max(int64_t(memory.size()), std::min(numel, kPieceElements))));
  for (Range piece{0, 0}; piece.begin < numel; piece.begin = piece.end) {
    piece.end = std::min(numel, piece.begin + kPieceElements);
    const Tensor here(memory.data(), DType::fp32, {piece.size()}, MemoryKind::host);
    r.read(piece, here);
    for (int64_t at = 0; at < piece.size(); at += Manifest::kBlock)
      checksums.push_back(checksum_of(
          memory.data() + at, std::min(Manifest::kBlock, piece.size() - at) * int64_t(sizeof(float))));
    sink(here);
  }
  return checksums;
}

// `save` is a name that no other save has, so that shards of two saves are told apart.
void write_shard(const fs::path& folder, const std::string& stem, const std::string& save,
                 const std::vector<Record>& records) {
  const std::string file = stem + ".safetensors";
  Manifest mine;
  std::vector<NamedTensor> tensors;
  std::vector<float> memory;
  for (const Record& r : records) {
    const int64_t numel = r.elements.numel();
    if (numel == 0) continue;
    const Manifest::Name name{r.kind, r.tensor};
    tensors.push_back({name_in_shard(name, r.elements),
                       {numel},
                       Tensor(nullptr, DType::fp32, {numel}, MemoryKind::host),
                       [&r, &file, &mine, &memory, name](const NamedTensor::Sink& sink) {
                         Manifest::Whole& whole = mine.tensors[name];
                         whole.shape = r.shape;
                         whole.parts.push_back({file, r.elements, stream_out(r, memory, sink)});
                       }});
  }
  const WrittenFile written =
      write_safetensors(folder / file, tensors, {{"format", "cleave"}, {"save", save}});
  mine.shards[file] = {written.bytes, checksum_of(written.header)};
  write_text(folder / (stem + ".json"), mine.rank_text());
}

// Rank 0 collects what every rank wrote, checks that it has every element of every tensor once, and writes
// the manifest.
void write_manifest(const fs::path& folder, int ranks, const std::string& state) {
  Manifest manifest;
  manifest.state = state;
  for (int r = 0; r < ranks; ++r) {
    const fs::path part = folder / fmt::format("shard-{:05}.json", r);
    manifest.add_rank(InputFile(part.string(), Exit::checkpoint).text());
    fs::remove(part);
  }
  manifest.require_complete();
  write_text(folder / "manifest.json", manifest.text());
}

void put_in_place(const fs::path& dir, const fs::path& temporary, const std::string& tag) {
  const fs::path target = dir / tag, old = dir / (".old." + tag);
  sync_folder(temporary);
  fs::remove_all(old);
  if (fs::exists(target)) fs::rename(target, old);
  fs::rename(temporary, target);
  write_text(dir / "latest.tmp", tag + "\n");
  fs::rename(dir / "latest.tmp", dir / "latest");
  sync_folder(dir);
  remove_checkpoint(old);
}

// The same on every rank.
std::string new_name(Communicator& world) {
  std::random_device random;
  uint64_t number = uint64_t(random()) << 32 | random();
  Stream stream;
  world.broadcast(Tensor(&number, DType::int64, {1}, MemoryKind::host), 0, stream,
                  {.what = "name of a save"});
  stream.synchronize();
  return fmt::format("{:016x}", number);
}

}  // namespace

void save_checkpoint(const fs::path& dir, const std::string& tag, const std::vector<Record>& records,
                     const std::string& state, Communicator& world) {
  const fs::path temporary = dir / (".tmp." + tag);
  // A rank that fails must still meet the others, or they would wait for the deadline.
  auto step = [&](const std::function<void()>& body) {
    try {
      together(world, Exit::checkpoint, body);
    } catch (const Error& e) {
      if (e.exit() == Exit::rank_lost) throw;
      std::error_code ignored;
      if (world.rank() == 0) fs::remove_all(temporary, ignored);
      throw AgreedError(Exit::checkpoint,
                        fmt::format("checkpoint {} was not saved; earlier ones are unchanged: {}",
                                    (dir / tag).string(), e.what()));
    }
  };
  step([&] {
    require(is_plain_name(tag), Exit::checkpoint, "{} is not the name of a folder in it", in_quotes(tag));
    if (world.rank() != 0) return;
    fs::remove_all(temporary);
    fs::create_directories(temporary);
  });
  const std::string save = new_name(world);
  step([&] { write_shard(temporary, fmt::format("shard-{:05}", world.rank()), save, records); });
  step([&] {
    if (world.rank() != 0) return;
    write_manifest(temporary, world.size(), state);
    put_in_place(dir, temporary, tag);
  });
}

void remove_checkpoint(const fs::path& folder) {
  fs::remove(folder / "manifest.json");
  fs::remove_all(folder);
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 200 && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(),
                      [](char c) { return c == '/' || uint8_t(c) < 0x20 || c == 0x7f; });
}

std::vector<std::string> checkpoint_folders(const fs::path& dir) {
  std::vector<std::string> names;
  if (!fs::exists(dir)) return names;
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

}  // namespace cleave
