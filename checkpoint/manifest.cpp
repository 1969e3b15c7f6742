#include "checkpoint/manifest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checksum.h"
#include "checkpoint/tensor_file.h"
#include "core/error.h"
#include "core/json.h"
#include "core/printable.h"

namespace cleave::checkpoint {
namespace {

using nlohmann::json;

const json& member(const json& object, const char* name) {
  if (!object.is_object() || !object.contains(name))
    fail(Exit::checkpoint, "\"{}\" is missing in {}", name, in_quotes(object.dump()));
  return object[name];
}

[[noreturn]] void refuse(const char* name, const json& value, std::string_view wanted) {
  fail(Exit::checkpoint, "\"{}\" is malformed (got {}, expected {})", name, in_quotes(value.dump()), wanted);
}

std::string text_of(const json& object, const char* name) {
  const json& value = member(object, name);
  if (!value.is_string()) refuse(name, value, "a string");
  return value;
}

const json& list_of(const json& object, const char* name, const char* wanted) {
  const json& list = member(object, name);
  if (!list.is_array()) refuse(name, list, wanted);
  return list;
}

// Reads a non-negative integer.
int64_t number_in(const json& value, const char* name, const json& shown, const char* wanted) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t(INT64_MAX)) refuse(name, shown, wanted);
  return value;
}

std::vector<int64_t> numbers_of(const json& object, const char* name) {
  constexpr const char* wanted = "a list of whole numbers";
  std::vector<int64_t> numbers;
  for (const json& n : list_of(object, name, wanted))
    numbers.push_back(number_in(n, name, object[name], wanted));
  return numbers;
}

Range pair_of(const json& object, const char* name) {
  const std::vector<int64_t> numbers = numbers_of(object, name);
  if (numbers.size() != 2) refuse(name, object[name], "two whole numbers");
  return {numbers[0], numbers[1]};
}

std::string digits(uint64_t checksum) { return fmt::format("{:016x}", checksum); }

uint64_t checksum_in(const json& value, const char* name) {
  constexpr const char* wanted = "16 lower-case hexadecimal digits";
  if (!value.is_string()) refuse(name, value, wanted);
  const auto text = value.get<std::string>();
  uint64_t sum = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), sum, 16);
  // Accept one spelling per value, so that every changed digit is detected.
  const bool small = text.find_first_of("ABCDEF") == std::string::npos;
  if (text.size() != 16 || !small || read.ec != std::errc() || read.ptr != text.data() + text.size())
    refuse(name, value, wanted);
  return sum;
}

Elements elements_of(const json& record) {
  Elements e{pair_of(record, "range")};
  if (!record.contains("every")) return e;
  const Range every = pair_of(record, "every");
  if (every.end == 0) refuse("every", record["every"], "a run and a distance above 0");
  e.run = every.begin, e.stride = every.end;
  return e;
}

std::string file_of(const json& record) {
  std::string file = text_of(record, "file");
  require(is_plain_name(file), Exit::checkpoint, "{} is not a valid shard name", in_quotes(file));
  return file;
}

// Type of a record; fp32 if it names none.
DType type_of(const json& record) {
  if (!record.contains("dtype")) return DType::fp32;
  const json& type = record["dtype"];
  for (const DType known : {DType::fp32, DType::int64})
    if (type == name_of(known)) return known;
  refuse("dtype", type, "fp32 or int64");
}

void add_record(Manifest& m, const json& r) {
  Manifest::Part part{file_of(r), elements_of(r), {}};
  if (m.block == 0) {
    part.checksums = {checksum_in(member(r, "xxh3"), "xxh3")};
  } else {
    for (const json& sum : list_of(r, "xxh3", "a list of checksums"))
      part.checksums.push_back(checksum_in(sum, "xxh3"));
  }
  const Manifest::Name name{text_of(r, "kind"), text_of(r, "tensor")};
  if (text_of(r, "name") != name_in_shard(name, part.elements))
    refuse("name", r["name"], "the name for the record's kind, tensor and elements");
  Manifest::Whole& whole = m.tensors[name];
  const std::vector<int64_t> shape = numbers_of(r, "shape");
  if (shape.size() > kMostDims) refuse("shape", r["shape"], fmt::format("at most {} numbers", kMostDims));
  const DType type = type_of(r);
  if (!whole.parts.empty() && whole.shape != shape)
    refuse("shape", r["shape"], "the value of its other parts");
  if (!whole.parts.empty() && whole.dtype != type) refuse("dtype", r, "the value of its other parts");
  whole.shape = shape, whole.dtype = type;
  whole.parts.push_back(std::move(part));
}

void add_records(Manifest& m, const json& object) {
  for (const json& r : list_of(object, "records", "a list")) add_record(m, r);
}

void add_shards(Manifest& m, const json& object) {
  const json& shards = member(object, "shards");
  if (!shards.is_object()) refuse("shards", shards, "an object");
  for (const auto& [file, shard] : shards.items()) {
    const int64_t bytes = number_in(member(shard, "bytes"), "bytes", shard, "a number of bytes");
    m.shards[file] = {bytes, checksum_in(member(shard, "header_xxh3"), "header_xxh3")};
  }
}

json records_of(const Manifest& m) {
  json out = json::array();
  for (const auto& [name, whole] : m.tensors)
    for (const Manifest::Part& p : whole.parts) {
      json record{{"kind", name.first},   {"tensor", name.second},
                  {"shape", whole.shape}, {"range", {p.elements.range.begin, p.elements.range.end}},
                  {"file", p.file},       {"name", name_in_shard(name, p.elements)},
                  {"xxh3", json::array()}};
      for (const uint64_t sum : p.checksums) record["xxh3"].push_back(digits(sum));
      if (whole.dtype != DType::fp32) record["dtype"] = name_of(whole.dtype);
      if (p.elements.stride) record["every"] = {p.elements.run, p.elements.stride};
      out.push_back(std::move(record));
    }
  return out;
}

json shards_of(const Manifest& m) {
  json out = json::object();
  for (const auto& [file, shard] : m.shards)
    out[file] = {{"bytes", shard.bytes}, {"header_xxh3", digits(shard.header)}};
  return out;
}

// Oldest version that can express this manifest, so that older programs can read it.
int version_of(const Manifest& m) {
  const bool plain =
      std::all_of(m.tensors.begin(), m.tensors.end(), [](auto& t) { return t.second.dtype == DType::fp32; });
  return plain ? 3 : Manifest::kVersion;
}

// The manifest ends with a checksum of its text, computed with zeros in the place of the digits.
constexpr size_t kDigits = 16, kBehindDigits = 4;  // quote, newline, brace, newline

void seal(std::string& text) {
  const size_t at = text.size() - kBehindDigits - kDigits;
  text.replace(at, kDigits, digits(checksum_of(text)));
}

void require_sealed(std::string text, const json& manifest) {
  const uint64_t wanted = checksum_in(member(manifest, "xxh3"), "xxh3");
  bool same = text.size() > kBehindDigits + kDigits;
  if (same) {
    text.replace(text.size() - kBehindDigits - kDigits, kDigits, kDigits, '0');
    same = checksum_of(text) == wanted;
  }
  require(same, Exit::checkpoint, "the text does not match its checksum {}", digits(wanted));
}

}  // namespace

std::string name_in_shard(const Manifest::Name& tensor, const Elements& e) {
  const std::string every = e.stride ? fmt::format(":{}/{}", e.run, e.stride) : "";
  return fmt::format("{}/{}[{}:{}{}]", tensor.first, tensor.second, e.range.begin, e.range.end, every);
}

int64_t numel_of(const std::vector<int64_t>& shape, DType dtype) {
  int64_t numel = 1;  // product of dimensions other than 0, so that none wraps around
  for (const int64_t d : shape)
    require(d >= 0 && !__builtin_mul_overflow(numel, std::max<int64_t>(d, 1), &numel) &&
                numel <= INT64_MAX / size_of(dtype),
            Exit::checkpoint, "[{}] is not a valid shape", fmt::join(shape, ", "));
  return std::find(shape.begin(), shape.end(), 0) == shape.end() ? numel : 0;
}

Manifest Manifest::read(const std::string& text) {
  if (const auto fault = fault_in_json(text))
    fail(Exit::checkpoint, "{}:{}: {}; the file starts with {}", fault->line, fault->column, fault->message,
         in_quotes(text));
  const json manifest = json::parse(text);
  require(manifest.is_object(), Exit::checkpoint, "it is not a JSON object and starts with {}",
          in_quotes(text));
  const std::string format = text_of(manifest, "format");
  require(format == "cleave", Exit::checkpoint, "unknown format (got {}, expected 'cleave')",
          in_quotes(format));
  const json& version = member(manifest, "version");
  if (!version.is_number_integer() || version < 1 || version > kVersion)
    fail(Exit::checkpoint, "unsupported version (got {}, expected 1 to {}); use the version that wrote it",
         in_quotes(version.dump()), kVersion);
  Manifest m;
  m.block = 0;
  if (version >= 3) {
    require_sealed(text, manifest);
    const json& block = member(manifest, "block");
    m.block = number_in(block, "block", block, "a number of elements");
    if (m.block == 0 || m.block > INT32_MAX) refuse("block", block, "a number of elements");
    add_shards(m, manifest);
  }
  m.state = member(manifest, "state").dump();
  add_records(m, manifest);
  m.require_complete();
  return m;
}

std::string Manifest::text() const {
  const json manifest{{"format", "cleave"},
                      {"version", version_of(*this)},
                      {"block", block},
                      {"state", json::parse(state)},
                      {"shards", shards_of(*this)},
                      {"records", records_of(*this)},
                      {"xxh3", digits(0)}};
  std::string text = manifest.dump(1) + "\n";
  seal(text);
  return text;
}

std::string Manifest::rank_text() const {
  return json{{"shards", shards_of(*this)}, {"records", records_of(*this)}}.dump();
}

void Manifest::add_rank(const std::string& text) {
  const json object = parse_json(text, "the records of a rank", Exit::checkpoint);
  add_shards(*this, object);
  add_records(*this, object);
}

void Manifest::require_complete() const {
  int64_t all = 0;
  for (const auto& [name, whole] : tensors) {
    require(!__builtin_add_overflow(all, whole.bytes(), &all), Exit::checkpoint,
            "its tensors have impossibly many bytes");
    std::vector<Elements> elements;
    for (const Part& p : whole.parts) elements.push_back(p.elements);
    require_each_once(elements, numel_of(whole.shape, whole.dtype), name.first + "/" + name.second);
    for (const Part& p : whole.parts) {
      const auto wanted = block ? size_t(ceil_div(p.elements.numel(), block)) : 1;
      require(p.checksums.size() == wanted, Exit::checkpoint,
              "{} of {} has the wrong number of checksums (got {}, expected {})",
              name_in_shard(name, p.elements), p.file, p.checksums.size(), wanted);
      require(block == 0 || shards.contains(p.file), Exit::checkpoint, "the shard {} is not listed",
              in_quotes(p.file));
    }
  }
}

int64_t Manifest::Whole::bytes() const { return numel_of(shape, dtype) * size_of(dtype); }

int64_t Manifest::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, whole] : tensors) bytes += whole.bytes();
  return bytes;
}

}  // namespace cleave::checkpoint
