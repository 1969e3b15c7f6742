#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_format.h"
#include "comm/together.h"
#include "core/printable.h"

namespace cleave {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

json to_json(const Record& r, const std::string& file, uint64_t checksum) {
  const Elements& e = r.elements;
  json out{{"kind", r.kind},
           {"tensor", r.tensor},
           {"shape", r.shape},
           {"range", {e.range.begin, e.range.end}},
           {"file", file},
           {"name", record_name(r.kind, r.tensor, e)},
           {"xxh3", fmt::format("{:016x}", checksum)}};
  if (e.stride) out["every"] = {e.run, e.stride};
  return out;
}

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

// Gives a record's elements to the sink, through `memory`; returns their checksum.
uint64_t stream_out(const Record& r, std::vector<float>& memory, const NamedTensor::Sink& sink) {
  const int64_t numel = r.elements.numel();
  Checksum checksum;
  memory.resize(size_t(std::max(int64_t(memory.size()), std::min(numel, kPiece))));
  for (Range piece{0, 0}; piece.begin < numel; piece.begin = piece.end) {
    piece.end = std::min(numel, piece.begin + kPiece);
    const Tensor here(memory.data(), DType::fp32, {piece.size()}, MemoryKind::host);
    r.read(piece, here);
    checksum.add(here.raw(), here.bytes());
    sink(here);
  }
  return checksum.value();
}

void write_shard(const fs::path& folder, const std::string& stem, const std::vector<Record>& records) {
  std::vector<NamedTensor> tensors;
  json parts = json::array();
  std::vector<float> memory;
  for (const Record& r : records) {
    const int64_t numel = r.elements.numel();
    if (numel == 0) continue;
    tensors.push_back({record_name(r.kind, r.tensor, r.elements),
                       {numel},
                       Tensor(nullptr, DType::fp32, {numel}, MemoryKind::host),
                       [&r, &stem, &parts, &memory](const NamedTensor::Sink& sink) {
                         const uint64_t checksum = stream_out(r, memory, sink);
                         parts.push_back(to_json(r, stem + ".safetensors", checksum));
                       }});
  }
  write_safetensors(folder / (stem + ".safetensors"), tensors, {{"format", "cleave"}});
  write_text(folder / (stem + ".json"), parts.dump());
}

// Rank 0 collects what every rank wrote, checks that it has every element of every tensor once, and writes
// the manifest.
void write_manifest(const fs::path& folder, int ranks, const std::string& state) {
  json records = json::array();
  struct Whole {
    int64_t numel = 0;
    std::vector<Elements> parts;
  };
  std::map<std::string, Whole> saved;
  bool gaps = false;
  for (int r = 0; r < ranks; ++r) {
    const fs::path part = folder / fmt::format("shard-{:05}.json", r);
    for (json& record : json::parse(read_text(part))) {
      Whole& whole =
          saved[record.at("kind").get<std::string>() + "/" + record.at("tensor").get<std::string>()];
      whole.numel = numel_of(shape_of(record));
      whole.parts.push_back(elements_of(record));
      gaps = gaps || record.contains("every");
      records.push_back(std::move(record));
    }
    fs::remove(part);
  }
  for (const auto& [tensor, whole] : saved) require_each_once(whole.parts, whole.numel, tensor);
  const json manifest{{"format", "cleave"},
                      {"version", gaps ? kFormatVersion : 1},
                      {"state", json::parse(state)},
                      {"records", records}};
  write_text(folder / "manifest.json", manifest.dump(1));
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
  fs::remove_all(old);
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
  step([&] { write_shard(temporary, fmt::format("shard-{:05}", world.rank()), records); });
  step([&] {
    if (world.rank() != 0) return;
    write_manifest(temporary, world.size(), state);
    put_in_place(dir, temporary, tag);
  });
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
