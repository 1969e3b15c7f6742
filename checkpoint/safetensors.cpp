#include "checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/output_file.h"
#include "core/json.h"
#include "core/printable.h"

namespace cleave::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little);
constexpr int64_t kMostHeaderBytes = 100'000'000;

struct TypeName {
  DType type;
  const char* name;
};
constexpr TypeName kTypes[] = {{DType::fp32, "F32"},   {DType::fp16, "F16"},  {DType::bf16, "BF16"},
                               {DType::fp64, "F64"},   {DType::int64, "I64"}, {DType::int32, "I32"},
                               {DType::uint16, "U16"}, {DType::uint8, "U8"}};
// Types of the format without arithmetic support, mapped to types of the same size.
constexpr TypeName kForeign[] = {
    {DType::uint8, "BOOL"},    {DType::uint8, "I8"},      {DType::uint16, "I16"},
    {DType::int32, "U32"},     {DType::int64, "U64"},     {DType::uint8, "F8_E4M3"},
    {DType::uint8, "F8_E5M2"}, {DType::uint8, "F8_E8M0"}, {DType::int64, "C64"}};

const TypeName* type_called(std::span<const TypeName> types, const std::string& name) {
  const auto at = std::find_if(types.begin(), types.end(), [&](auto& t) { return t.name == name; });
  return at == types.end() ? nullptr : &*at;
}

int64_t whole_number(const nlohmann::json& value) {
  require(value.is_number_integer() &&
              (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t(INT64_MAX)),
          Exit::checkpoint, "a {} is in the place of an integer", value.type_name());
  return value.get<int64_t>();
}

std::string header_of(const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t at = 0;
  for (const NamedTensor& t : tensors) {
    const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](const TypeName& n) { return n.type == t.data.dtype(); });
    CHECK(!header.contains(t.name), "two tensors named {}", t.name);
    header[t.name] = {{"dtype", type->name}, {"shape", t.shape}, {"data_offsets", {at, at + t.data.bytes()}}};
    at += t.data.bytes();
  }
  std::string text = header.dump();
  text.resize(size_t(round_up(int64_t(text.size()), 8)), ' ');  // aligns the data
  return text;
}

}  // namespace

WrittenFile write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::string header = header_of(tensors, metadata);
  const uint64_t length = header.size();
  auto bytes = int64_t(sizeof length + header.size());
  for (const NamedTensor& t : tensors) bytes += t.data.bytes();
  OutputFile out(path, bytes);
  out.write(&length, sizeof length);
  out.write(header.data(), int64_t(header.size()));
  for (const NamedTensor& t : tensors) {
    int64_t left = t.data.bytes();
    const NamedTensor::Sink sink = [&](const Tensor& piece) {
      out.write(piece.raw(), piece.bytes());
      left -= piece.bytes();
    };
    if (t.produce)
      t.produce(sink);
    else
      sink(t.data);
    CHECK(left == 0, "{}: {} bytes of {} are missing", path.string(), left, t.name);
  }
  out.close();
  return {bytes, std::move(header)};
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : path_(std::move(path)), file_(path_.string(), Exit::checkpoint) {
  uint64_t length = 0;
  try {
    require(file_.size() >= int64_t(sizeof length), Exit::checkpoint, "it is shorter than 8 bytes");
    file_.read(0, std::as_writable_bytes(std::span(&length, 1)));
    require(length <= uint64_t(kMostHeaderBytes) && int64_t(length) + 8 <= file_.size(), Exit::checkpoint,
            "the header has {} bytes in a file of {}", length, file_.size());
    header_.resize(size_t(length));
    file_.read(8, std::as_writable_bytes(std::span(header_)));
    data_ = 8 + int64_t(length);
    read_header();
  } catch (const Error& e) {
    fail(Exit::checkpoint, "{}: is damaged or not a safetensors file: {}", path_.string(), e.what());
  } catch (const nlohmann::json::exception&) {
    fail(Exit::checkpoint,
         "{}: is damaged or not a safetensors file: a part of a tensor is missing in the header",
         path_.string());
  }
}

void SafetensorsFile::read_header() {
  const auto header = parse_json(header_, "the header", Exit::checkpoint);
  require(header.is_object(), Exit::checkpoint, "the header is not a JSON object");
  const int64_t size = file_.size();
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    StoredTensor t;
    const auto type = value.at("dtype").get<std::string>();
    const TypeName* known = type_called(kTypes, type);
    if (!known && (known = type_called(kForeign, type))) t.foreign = type;
    require(known, Exit::checkpoint, "tensor {} has the unknown type {}", in_quotes(name), in_quotes(type));
    t.dtype = known->type;
    const auto& shape = value.at("shape");
    require(shape.is_array() && shape.size() <= kMostDims, Exit::checkpoint, "tensor {} has no shape",
            in_quotes(name));
    std::transform(shape.begin(), shape.end(), std::back_inserter(t.shape), whole_number);
    const auto& offsets = value.at("data_offsets");
    t.begin = whole_number(offsets.at(0)), t.end = whole_number(offsets.at(1));
    __int128 numel = 1;  // 128 bits, so that no product of the file's numbers wraps around
    for (int64_t d : t.shape) {
      require(d >= 0 && numel <= size, Exit::checkpoint, "tensor {} has an impossible shape",
              in_quotes(name));
      numel *= d;
    }
    require(t.begin >= 0 && t.end >= t.begin && t.end <= size - data_ &&
                t.end - t.begin == numel * size_of(t.dtype),
            Exit::checkpoint, "tensor {} is at bytes {} to {} of {}", in_quotes(name), t.begin, t.end,
            size - data_);
    ranges.emplace_back(t.begin, t.end);
    tensors_.emplace(name, std::move(t));
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    require(begin == at, Exit::checkpoint, "hole or overlap at byte {}", at);
    at = end;
  }
  require(data_ + at == size, Exit::checkpoint, "the tensors have {} bytes, but the file has {}", at,
          size - data_);
}

int64_t SafetensorsFile::offset(const std::string& name) const { return data_ + tensors_.at(name).begin; }

void SafetensorsFile::read(const std::string& name, int64_t begin, std::span<std::byte> bytes) const {
  const auto at = tensors_.find(name);
  require(at != tensors_.end(), Exit::checkpoint, "{}: the tensor {} is missing", path_.string(),
          in_quotes(name));
  CHECK(0 <= begin && begin + int64_t(bytes.size()) <= at->second.end - at->second.begin,
        "{}: cannot read {} bytes at {} of {}", path_.string(), bytes.size(), begin, name);
  file_.read(data_ + at->second.begin + begin, bytes);
}

}  // namespace cleave::checkpoint
