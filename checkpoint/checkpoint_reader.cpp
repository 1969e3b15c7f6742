#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_format.h"
#include "core/input_file.h"
#include "core/printable.h"

namespace cleave {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

// Elements as equal runs at equal distances; a range is one run.
struct Runs {
  explicit Runs(const Elements& e)
      : begin(e.range.begin),
        run(e.stride ? e.run : e.range.size()),
        stride(e.stride ? e.stride : std::max<int64_t>(1, run)),
        count(run ? e.numel() / run : 0) {}
  Range at(int64_t i) const { return Range{0, run}.shifted(begin + i * stride); }
  // The first run that ends after this element of the whole tensor.
  int64_t after(int64_t element) const { return std::max<int64_t>(0, (element - begin - run) / stride); }
  int64_t begin, run, stride, count;
};

// Calls overlap(place in wanted, place in stored, numel) for what both have of wanted's elements [window).
template <class Overlap>
void each_overlap(const Elements& wanted, Range window, const Elements& stored, const Overlap& overlap) {
  const Runs w(wanted), s(stored);
  for (int64_t i = w.run ? window.begin / w.run : 0; i < w.count && i * w.run < window.end; ++i) {
    const Range part = intersect(window, Range{i * w.run, (i + 1) * w.run});
    const int64_t to_tensor = w.at(i).begin - i * w.run;
    const Range want = part.shifted(to_tensor);
    for (int64_t j = s.after(want.begin); j < s.count && s.at(j).begin < want.end; ++j) {
      const Range both = intersect(want, s.at(j));
      if (!both.empty()) overlap(both.begin - to_tensor, j * s.run + both.begin - s.at(j).begin, both.size());
    }
  }
}

}  // namespace

Elements elements_of(const json& record) {
  Elements e{{record.at("range").at(0), record.at("range").at(1)}};
  if (record.contains("every")) e.run = record["every"].at(0), e.stride = record["every"].at(1);
  return e;
}

std::string read_text(const fs::path& path) { return InputFile(path.string(), Exit::checkpoint).text(); }

namespace {

// Error(checkpoint) where the system does not say, as in a folder that may not be entered.
bool is_there(const fs::path& path) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  require(!error, Exit::checkpoint, "{}: cannot be examined: {}", path.string(), error.message());
  return there;
}

json parse_manifest(const std::string& text) {
  json manifest = json::parse(text, nullptr, /*allow_exceptions=*/false);
  require(manifest.is_object(), Exit::checkpoint, "it is not JSON and begins with {}", in_quotes(text));
  const json version = manifest.value("version", json());
  require(manifest.value("format", json()) == "cleave" && (version == 1 || version == kFormatVersion),
          Exit::checkpoint, "its version {} is not 1 or {}, which this program reads",
          in_quotes(version.dump()), kFormatVersion);
  return manifest;
}

}  // namespace

std::string latest_checkpoint(const fs::path& dir) {
  require(is_there(dir / "latest"), Exit::checkpoint,
          "{} has no file 'latest', which names the checkpoint to go on from", dir.string());
  std::string name = read_text(dir / "latest");
  name.erase(name.find_last_not_of(" \n\r\t") + 1);
  require(is_plain_name(name), Exit::checkpoint,
          "{} is damaged: it holds {}, which is not the name of a checkpoint in that folder",
          (dir / "latest").string(), in_quotes(name));
  return name;
}

CheckpointReader::CheckpointReader(const fs::path& dir, const std::string& tag) {
  require(is_plain_name(tag), Exit::checkpoint, "{} is not the name of a checkpoint in {}", in_quotes(tag),
          dir.string());
  path_ = dir / (tag == "latest" ? latest_checkpoint(dir) : tag);
  if (!is_there(path_ / "manifest.json")) {
    std::string others;
    for (const std::string& c : list_checkpoints(dir)) others += (others.empty() ? "" : ", ") + c;
    fail(Exit::checkpoint, "checkpoint {} does not exist or is incomplete; complete ones in {}: {}",
         path_.string(), dir.string(), others.empty() ? "none" : others);
  }
  try {
    read_manifest(read_text(path_ / "manifest.json"));
  } catch (const Error& e) {
    fail(Exit::checkpoint, "{}: damaged manifest: {}", (path_ / "manifest.json").string(), e.what());
  } catch (const std::exception&) {  // of the JSON library or of stoull: a part is missing or something else
    fail(Exit::checkpoint, "{}: damaged manifest: a part of it is missing or has another form than it should",
         (path_ / "manifest.json").string());
  }
}

void CheckpointReader::read_manifest(const std::string& text) {
  const json manifest = parse_manifest(text);
  state_ = manifest.at("state").dump();
  for (const json& r : manifest.at("records")) {
    const auto file_name = r.at("file").get<std::string>();
    require(is_plain_name(file_name), Exit::checkpoint, "{} is not the name of a shard",
            in_quotes(file_name));
    Whole& whole = tensors_[{r.at("kind"), r.at("tensor")}];
    whole.shape = r.at("shape").get<std::vector<int64_t>>();
    whole.parts.push_back(
        {file_name, r.at("name"), elements_of(r), std::stoull(r.at("xxh3").get<std::string>(), nullptr, 16)});
  }
}

void CheckpointReader::check_files() const {
  for (const auto& [tensor, whole] : tensors_)
    for (const Stored& s : whole.parts) {
      const auto& there = file(s.file).tensors();
      const auto at = there.find(s.name);
      require(at != there.end() && at->second.end - at->second.begin == s.elements.numel() * 4,
              Exit::checkpoint, "{}: {} of {} is not in it as the manifest says", (path_ / s.file).string(),
              tensor.first, tensor.second);
    }
}

void CheckpointReader::verify_all() const {
  check_files();
  for (const auto& [tensor, whole] : tensors_)
    for (const Stored& s : whole.parts) verify(s);
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
  const int64_t wanted = record.elements.numel();
  std::vector<float> memory(size_t(std::min(wanted, kPiece)));
  int64_t filled = 0;
  for (Range window{0, 0}; window.begin < wanted; window.begin = window.end) {
    window.end = std::min(wanted, window.begin + kPiece);
    const Tensor here(memory.data(), DType::fp32, {window.size()}, MemoryKind::host);
    for (const Stored& s : at->second.parts) filled += fill(here, record, window.begin, s);
    record.write(window, here);
  }
  require(filled == wanted, Exit::checkpoint, "{}: {} of {} elements of {} {} are stored", path_.string(),
          filled, wanted, record.kind, record.tensor);
}

// What a stored record has of the record's elements from `begin` on, as many as `window` has; returns how
// many.
int64_t CheckpointReader::fill(Tensor window, const Record& record, int64_t begin,
                               const Stored& stored) const {
  const Range range{begin, begin + window.numel()};
  Range span{stored.elements.numel(), 0};  // of the stored elements
  each_overlap(record.elements, range, stored.elements, [&](int64_t, int64_t from, int64_t n) {
    span = {std::min(span.begin, from), std::max(span.end, from + n)};
  });
  if (span.empty()) return 0;
  verify(stored);
  int64_t filled = 0;
  std::vector<float> bytes(size_t(std::min(span.size(), kPiece)));
  for (Range part{span.begin, 0}; part.begin < span.end; part.begin = part.end) {
    part.end = std::min(span.end, part.begin + kPiece);
    const auto held = std::span(bytes).first(size_t(part.size()));
    file(stored.file).read(stored.name, part.begin * 4, std::as_writable_bytes(held));
    each_overlap(record.elements, range, stored.elements, [&](int64_t to, int64_t from, int64_t n) {
      const Range both = intersect(part, {from, from + n});
      if (both.empty()) return;
      std::memcpy(window.as<float>() + (to - begin) + (both.begin - from),
                  held.data() + (both.begin - part.begin), size_t(both.size()) * sizeof(float));
      filled += both.size();
    });
  }
  return filled;
}

void CheckpointReader::verify(const Stored& stored) const {
  if (!verified_.insert(stored.file + "/" + stored.name).second) return;
  const SafetensorsFile& shard = file(stored.file);
  const auto at = shard.tensors().find(stored.name);
  const int64_t bytes = at == shard.tensors().end() ? -1 : at->second.end - at->second.begin;
  std::vector<std::byte> memory(size_t(std::clamp<int64_t>(bytes, 0, kPiece * 4)));
  Checksum checksum;
  for (int64_t done = 0; done < bytes; done += int64_t(memory.size())) {
    const auto part = std::span(memory).first(size_t(std::min(bytes - done, int64_t(memory.size()))));
    shard.read(stored.name, done, part);
    checksum.add(part.data(), int64_t(part.size()));
  }
  require(bytes == stored.elements.numel() * 4 && checksum.value() == stored.checksum, Exit::checkpoint,
          "{}: the bytes of {} do not match their checksum; the file is damaged", shard.path().string(),
          stored.name);
}

}  // namespace cleave
