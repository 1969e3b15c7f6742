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

// Version 2 adds "every": [run, stride] to the records that have gaps; a checkpoint without any is version 1.
constexpr int kFormatVersion = 2;

std::string record_name(const Record& r) {
  const Elements& e = r.elements;
  const std::string every = e.stride ? fmt::format(":{}/{}", e.run, e.stride) : "";
  return fmt::format("{}/{}[{}:{}{}]", r.kind, r.tensor, e.range.begin, e.range.end, every);
}

json to_json(const Record& r, const std::string& file) {
  const Elements& e = r.elements;
  json out{{"kind", r.kind},
           {"tensor", r.tensor},
           {"shape", r.shape},
           {"range", {e.range.begin, e.range.end}},
           {"file", file},
           {"name", record_name(r)},
           {"xxh3", fmt::format("{:016x}", XXH3_64bits(r.data.raw(), size_t(r.data.bytes())))}};
  if (e.stride) out["every"] = {e.run, e.stride};
  return out;
}

Elements elements_of(const json& record) {
  Elements e{{record.at("range").at(0), record.at("range").at(1)}};
  if (record.contains("every")) e.run = record["every"].at(0), e.stride = record["every"].at(1);
  return e;
}

// Copies what two descriptions of elements have in common; returns how many there were.
int64_t copy_common(float* to, const Elements& wanted, const float* from, const Elements& stored) {
  struct Runs {
    int64_t begin, run, stride, count;
  };
  auto runs_of = [](const Elements& e) {
    const int64_t run = e.stride ? e.run : e.range.size(),
                  stride = e.stride ? e.stride : std::max<int64_t>(1, run);
    return Runs{e.range.begin, run, stride, run ? e.numel() / run : 0};
  };
  const Runs w = runs_of(wanted), s = runs_of(stored);
  int64_t copied = 0;
  for (int64_t i = 0; i < w.count; ++i) {
    const Range want = Range{0, w.run}.shifted(w.begin + i * w.stride);
    for (int64_t j = std::max<int64_t>(0, (want.begin - s.begin - s.run) / s.stride); j < s.count; ++j) {
      const Range have = Range{0, s.run}.shifted(s.begin + j * s.stride), both = intersect(want, have);
      if (have.begin >= want.end) break;
      if (both.empty()) continue;
      std::memcpy(to + i * w.run + both.begin - want.begin, from + j * s.run + both.begin - have.begin,
                  size_t(both.size()) * sizeof(float));
      copied += both.size();
    }
  }
  return copied;
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
    CHECK(r.data.numel() == r.elements.numel() && r.data.dtype() == DType::fp32, "record {}", record_name(r));
    if (r.data.numel() == 0) continue;
    tensors.push_back({record_name(r), {r.data.numel()}, r.data});
    parts.push_back(to_json(r, stem + ".safetensors"));
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
  bool gaps = false;
  for (int r = 0; r < ranks; ++r) {
    const fs::path part = folder / fmt::format("shard-{:05}.json", r);
    for (json& record : json::parse(read_text(part))) {
      int64_t numel = 1;
      for (int64_t d : record.at("shape")) numel *= d;
      auto& c = covered[{record.at("kind"), record.at("tensor")}];
      c.first = numel, c.second += elements_of(record).numel();
      gaps = gaps || record.contains("every");
      records.push_back(std::move(record));
    }
    fs::remove(part);
  }
  for (const auto& [name, c] : covered)
    CHECK(c.first == c.second, "checkpoint: {} of {} elements of {}/{} were saved", c.second, c.first,
          name.first, name.second);
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
    const json& version = manifest.at("version");
    require(manifest.at("format") == "cleave" && (version == 1 || version == kFormatVersion),
            Exit::checkpoint, "{}: manifest version {} is not 1 or {}, which this program reads",
            path_.string(), version.dump(), kFormatVersion);
    state_ = manifest.at("state").dump();
    for (const json& r : manifest.at("records")) {
      Whole& whole = tensors_[{r.at("kind"), r.at("tensor")}];
      whole.shape = r.at("shape").get<std::vector<int64_t>>();
      whole.parts.push_back({r.at("file"), r.at("name"), elements_of(r),
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
    if (intersect(s.elements.range, record.elements.range).empty()) continue;
    const SafetensorsFile& shard = file(s.file);
    const std::vector<std::byte> bytes = shard.read(s.name);
    require(XXH3_64bits(bytes.data(), bytes.size()) == s.checksum &&
                int64_t(bytes.size()) == s.elements.numel() * 4,
            Exit::checkpoint, "{}: the bytes of {} do not match their checksum; the file is damaged",
            shard.path().string(), s.name);
    filled += copy_common(record.data.as<float>(), record.elements,
                          reinterpret_cast<const float*>(bytes.data()), s.elements);
  }
  const int64_t wanted = record.elements.numel();
  require(filled == wanted, Exit::checkpoint, "{}: {} of {} elements of {} {} are stored", path_.string(),
          filled, wanted, record.kind, record.tensor);
}

}  // namespace cleave
