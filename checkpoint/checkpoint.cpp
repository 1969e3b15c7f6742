#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "checkpoint/safetensors.h"

namespace cleave {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr int kFormatVersion = 1;

std::string record_name(const Record& r) {
  return fmt::format("{}/{}[{}:{}]", r.kind, r.tensor, r.range.begin, r.range.end);
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  require(in.good(), Exit::checkpoint, "cannot read {}: {}", path.string(), std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
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

void write_shard(const fs::path& folder, const std::string& stem, const std::vector<Record>& records) {
  std::vector<NamedTensor> tensors;
  json parts = json::array();
  for (const Record& r : records) {
    CHECK(r.data.numel() == r.range.size() && r.data.dtype() == DType::fp32, "record {}", record_name(r));
    if (r.range.empty()) continue;
    tensors.push_back({record_name(r), {r.range.size()}, r.data});
    parts.push_back({{"kind", r.kind},
                     {"tensor", r.tensor},
                     {"shape", r.shape},
                     {"range", {r.range.begin, r.range.end}},
                     {"file", stem + ".safetensors"},
                     {"name", tensors.back().name},
                     {"xxh3", fmt::format("{:016x}", XXH3_64bits(r.data.raw(), size_t(r.data.bytes())))}});
  }
  write_safetensors(folder / (stem + ".safetensors"), tensors, {{"format", "cleave"}});
  write_text(folder / (stem + ".json"), parts.dump());
}

// Rank 0 collects what every rank wrote, checks that it covers every tensor exactly once, and writes the
// manifest.
void write_manifest(const fs::path& folder, int ranks, const std::string& state) {
  json records = json::array();
  std::map<std::pair<std::string, std::string>, std::pair<int64_t, int64_t>>
      covered;  // {elements wanted, seen}
  for (int r = 0; r < ranks; ++r) {
    const fs::path part = folder / fmt::format("shard-{:05}.json", r);
    for (json& record : json::parse(read_text(part))) {
      int64_t numel = 1;
      for (int64_t d : record.at("shape")) numel *= d;
      auto& c = covered[{record.at("kind"), record.at("tensor")}];
      c.first = numel,
      c.second += record.at("range").at(1).get<int64_t>() - record.at("range").at(0).get<int64_t>();
      records.push_back(std::move(record));
    }
    fs::remove(part);
  }
  for (const auto& [name, c] : covered)
    CHECK(c.first == c.second, "checkpoint: {} of {} elements of {}/{} were saved", c.second, c.first,
          name.first, name.second);
  const json manifest{
      {"format", "cleave"}, {"version", kFormatVersion}, {"state", json::parse(state)}, {"records", records}};
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
  Stream stream;
  std::string failure;
  // A rank that fails must still meet the others, or they would wait for the deadline.
  auto step = [&](auto&& body) {
    if (failure.empty()) {
      try {
        body();
      } catch (const std::exception& e) {
        failure = e.what();
      }
    }
    double failed = failure.empty() ? 0 : 1;
    world.all_reduce(Tensor(&failed, DType::fp64, {1}), stream, {.what = "checkpoint"});
    if (failed == 0) return;
    std::error_code ignored;
    if (world.rank() == 0) fs::remove_all(temporary, ignored);
    fail(Exit::checkpoint, "checkpoint {} was not saved; earlier ones are unchanged: {}",
         (dir / tag).string(), failure.empty() ? "another rank failed" : failure);
  };
  step([&] {
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

std::vector<std::string> list_checkpoints(const fs::path& dir) {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".") || !fs::exists(entry.path() / "manifest.json")) continue;
    found.emplace_back(fs::last_write_time(entry.path() / "manifest.json"), name);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (auto& [time, name] : found) names.push_back(std::move(name));
  return names;
}

CheckpointReader::CheckpointReader(const fs::path& dir, const std::string& tag) {
  std::string name = tag;
  if (tag == "latest") {
    require(fs::exists(dir / "latest"), Exit::checkpoint,
            "{} has no checkpoint: the file 'latest' is missing", dir.string());
    name = read_text(dir / "latest");
    name.erase(name.find_last_not_of(" \n\r\t") + 1);
  }
  path_ = dir / name;
  if (!fs::exists(path_ / "manifest.json")) {
    std::string others;
    for (const std::string& c : list_checkpoints(dir)) others += (others.empty() ? "" : ", ") + c;
    fail(Exit::checkpoint, "checkpoint {} does not exist or is incomplete; complete ones in {}: {}",
         path_.string(), dir.string(), others.empty() ? "none" : others);
  }
  try {
    const json manifest = json::parse(read_text(path_ / "manifest.json"));
    require(manifest.at("format") == "cleave" && manifest.at("version") == kFormatVersion, Exit::checkpoint,
            "{}: manifest version {} is not {}, which this program reads", path_.string(),
            manifest.at("version").dump(), kFormatVersion);
    state_ = manifest.at("state").dump();
    for (const json& r : manifest.at("records")) {
      Whole& whole = tensors_[{r.at("kind"), r.at("tensor")}];
      whole.shape = r.at("shape").get<std::vector<int64_t>>();
      whole.parts.push_back({r.at("file"),
                             r.at("name"),
                             {r.at("range").at(0), r.at("range").at(1)},
                             std::stoull(r.at("xxh3").get<std::string>(), nullptr, 16)});
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    fail(Exit::checkpoint, "{}: damaged manifest: {}", (path_ / "manifest.json").string(), e.what());
  }
}

std::vector<int64_t> CheckpointReader::shape(const std::string& kind, const std::string& tensor) const {
  const auto at = tensors_.find({kind, tensor});
  return at == tensors_.end() ? std::vector<int64_t>{} : at->second.shape;
}

std::vector<std::pair<std::string, std::string>> CheckpointReader::tensors() const {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [name, whole] : tensors_) names.push_back(name);
  return names;
}

const SafetensorsFile& CheckpointReader::file(const std::string& name) const {
  std::unique_ptr<SafetensorsFile>& opened = files_[name];
  if (!opened) opened = std::make_unique<SafetensorsFile>(path_ / name);
  return *opened;
}

void CheckpointReader::read(const Record& record) const {
  const auto at = tensors_.find({record.kind, record.tensor});
  require(at != tensors_.end(), Exit::checkpoint,
          "{} holds no {} of {}; was it written by another model or optimizer?", path_.string(), record.kind,
          record.tensor);
  require(at->second.shape == record.shape, Exit::checkpoint,
          "{}: {} of {} has {} elements in dim 0, the model wants {}", path_.string(), record.kind,
          record.tensor, at->second.shape.empty() ? 0 : at->second.shape[0],
          record.shape.empty() ? 0 : record.shape[0]);
  int64_t filled = 0;
  for (const Stored& s : at->second.parts) {
    const Range part = intersect(s.range, record.range);
    if (part.empty()) continue;
    const SafetensorsFile& shard = file(s.file);
    const std::vector<std::byte> bytes = shard.read(s.name);
    require(
        XXH3_64bits(bytes.data(), bytes.size()) == s.checksum && int64_t(bytes.size()) == s.range.size() * 4,
        Exit::checkpoint, "{}: the bytes of {} do not match their checksum; the file is damaged",
        shard.path().string(), s.name);
    const Tensor to = record.data.slice(part.shifted(-record.range.begin));
    std::memcpy(to.raw(), bytes.data() + (part.begin - s.range.begin) * 4, size_t(to.bytes()));
    filled += part.size();
  }
  require(filled == record.range.size(), Exit::checkpoint, "{}: {} of {} elements of {} {} are stored",
          path_.string(), filled, record.range.size(), record.kind, record.tensor);
}

}  // namespace cleave
