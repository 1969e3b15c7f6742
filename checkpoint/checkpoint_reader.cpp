#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_format.h"
#include "core/input_file.h"
#include "core/printable.h"

namespace cleave {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

const json& member(const json& object, const char* name) {
  if (!object.is_object() || !object.contains(name))
    fail(Exit::checkpoint, "\"{}\" is missing in {}", name, in_quotes(object.dump()));
  return object[name];
}

[[noreturn]] void refuse(const char* name, const json& value, const char* wanted) {
  fail(Exit::checkpoint, "\"{}\" is {}; wanted {}", name, in_quotes(value.dump()), wanted);
}

std::string text_of(const json& object, const char* name) {
  const json& value = member(object, name);
  if (!value.is_string()) refuse(name, value, "a text");
  return value;
}

// Whole numbers, none of them negative.
std::vector<int64_t> numbers_of(const json& object, const char* name) {
  const json& list = member(object, name);
  if (!list.is_array()) refuse(name, list, "a list of whole numbers");
  std::vector<int64_t> numbers;
  for (const json& n : list) {
    if (!n.is_number_unsigned() || n.get<uint64_t>() > uint64_t(INT64_MAX))
      refuse(name, list, "a list of whole numbers");
    numbers.push_back(n);
  }
  return numbers;
}

Range pair_of(const json& object, const char* name) {
  const std::vector<int64_t> numbers = numbers_of(object, name);
  if (numbers.size() != 2) refuse(name, object[name], "two whole numbers");
  return {numbers[0], numbers[1]};
}

uint64_t checksum_of(const json& record) {
  const std::string text = text_of(record, "xxh3");
  uint64_t sum = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), sum, 16);
  if (text.size() != 16 || read.ec != std::errc() || read.ptr != text.data() + text.size())
    refuse("xxh3", record["xxh3"], "16 hexadecimal digits");
  return sum;
}

}  // namespace

std::string record_name(const std::string& kind, const std::string& tensor, const Elements& e) {
  const std::string every = e.stride ? fmt::format(":{}/{}", e.run, e.stride) : "";
  return fmt::format("{}/{}[{}:{}{}]", kind, tensor, e.range.begin, e.range.end, every);
}

Elements elements_of(const json& record) {
  Elements e{pair_of(record, "range")};
  if (!record.contains("every")) return e;
  const Range every = pair_of(record, "every");
  if (every.end == 0) refuse("every", record["every"], "a run and a distance above 0");
  e.run = every.begin, e.stride = every.end;
  return e;
}

std::vector<int64_t> shape_of(const json& record) { return numbers_of(record, "shape"); }

int64_t numel_of(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t d : shape)
    require(!__builtin_mul_overflow(numel, d, &numel) && numel <= INT64_MAX / 4, Exit::checkpoint,
            "no tensor has the shape [{}]", fmt::join(shape, ", "));
  return numel;
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
  const std::string format = text_of(manifest, "format");
  require(format == "cleave", Exit::checkpoint, "it is of the format {}; this program reads 'cleave'",
          in_quotes(format));
  const json& version = member(manifest, "version");
  if (!version.is_number_integer() || version < 1 || version > kFormatVersion)
    fail(Exit::checkpoint,
         "its version {} is not 1 or {}, which this program reads; use the one that wrote it",
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
  } catch (const std::exception&) {  // bad_alloc or length_error
    fail(Exit::checkpoint, "{}: damaged manifest: it cuts a tensor into more pieces than memory can hold",
         (path_ / "manifest.json").string());
  }
}

void CheckpointReader::read_manifest(const std::string& text) {
  const json manifest = parse_manifest(text);
  state_ = member(manifest, "state").dump();
  const json& records = member(manifest, "records");
  if (!records.is_array()) refuse("records", records, "a list");
  for (const json& r : records) {
    const Stored stored{text_of(r, "file"), text_of(r, "name"), elements_of(r), checksum_of(r)};
    const Name name{text_of(r, "kind"), text_of(r, "tensor")};
    require(is_plain_name(stored.file), Exit::checkpoint, "{} is not the name of a shard",
            in_quotes(stored.file));
    if (stored.name != record_name(name.first, name.second, stored.elements))
      refuse("name", r["name"], "the name of the record's kind, tensor and elements");
    Whole& whole = tensors_[name];
    const std::vector<int64_t> shape = shape_of(r);
    if (!whole.parts.empty() && whole.shape != shape) refuse("shape", r["shape"], "that of its other parts");
    whole.shape = shape;
    whole.parts.push_back(stored);
  }
  require_complete();
}

void CheckpointReader::require_complete() const {
  for (const auto& [name, whole] : tensors_) {
    std::vector<Elements> parts;
    for (const Stored& s : whole.parts) parts.push_back(s.elements);
    require_each_once(parts, numel_of(whole.shape), name.first + "/" + name.second);
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
          "{} holds no {} of {}; was it written by another model or optimizer, or while that was frozen? "
          "--reset_optimizer takes the weights alone",
          path_.string(), record.kind, record.tensor);
  require(at->second.shape == record.shape, Exit::checkpoint,
          "{}: {} of {} has the shape [{}], the model wants [{}]", path_.string(), record.kind, record.tensor,
          fmt::join(at->second.shape, ", "), fmt::join(record.shape, ", "));
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
