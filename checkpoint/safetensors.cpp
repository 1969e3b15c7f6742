#include "checkpoint/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace cleave {
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
  text.resize(size_t(round_up(int64_t(text.size()), 8)), ' ');  // the data starts aligned
  return text;
}

class Output {
 public:
  explicit Output(const std::filesystem::path& path) : path_(path), file_(std::fopen(path.c_str(), "wb")) {
    if (!file_) refuse("open");
  }
  ~Output() {
    if (file_) std::fclose(file_);
  }
  void write(const void* data, int64_t bytes) {
    if (bytes > 0 && std::fwrite(data, 1, size_t(bytes), file_) != size_t(bytes)) refuse("write");
  }
  void close() {
    if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) refuse("flush");
    if (std::fclose(std::exchange(file_, nullptr)) != 0) refuse("close");
  }

 private:
  [[noreturn]] void refuse(const char* what) {
    fail(Exit::checkpoint, "cannot {} {}: {}{}", what, path_.string(), std::strerror(errno),
         errno == ENOSPC ? "; free space there or choose another --output" : "");
  }
  std::filesystem::path path_;
  std::FILE* file_;
};

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = header_of(tensors, metadata);
  const uint64_t length = header.size();
  Output out(path);
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
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
  file_ = std::fopen(path_.c_str(), "rb");
  require(file_ != nullptr, Exit::checkpoint, "cannot open {}: {}", path_.string(), std::strerror(errno));
  try {
    const auto size = int64_t(std::filesystem::file_size(path_));
    auto damaged = [&](const std::string& what) {
      fail(Exit::checkpoint, "{} is damaged or not a safetensors file: {}", path_.string(), what);
    };
    uint64_t length = 0;
    if (std::fread(&length, sizeof length, 1, file_) != 1) damaged("shorter than 8 bytes");
    if (length > uint64_t(kMostHeaderBytes) || int64_t(length) + 8 > size)
      damaged(fmt::format("a header of {} bytes in a file of {}", length, size));
    std::string text(size_t(length), '\0');
    if (std::fread(text.data(), 1, text.size(), file_) != text.size()) damaged("truncated header");
    data_ = 8 + int64_t(length);
    const auto header = nlohmann::json::parse(text, nullptr, false);
    if (!header.is_object()) damaged("the header is not a JSON object");
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") continue;
      StoredTensor t;
      try {
        const auto type = value.at("dtype").get<std::string>();
        const auto* known = std::find_if(std::begin(kTypes), std::end(kTypes),
                                         [&](const TypeName& n) { return n.name == type; });
        if (known == std::end(kTypes)) damaged(fmt::format("tensor {} has type {}", name, type));
        t.dtype = known->type;
        t.shape = value.at("shape").get<std::vector<int64_t>>();
        t.begin = value.at("data_offsets").at(0), t.end = value.at("data_offsets").at(1);
      } catch (const nlohmann::json::exception& e) {
        damaged(fmt::format("tensor {}: {}", name, e.what()));
      }
      int64_t numel = 1;
      for (int64_t d : t.shape) numel *= d;
      if (t.begin < 0 || t.end < t.begin || data_ + t.end > size ||
          t.end - t.begin != numel * size_of(t.dtype))
        damaged(fmt::format("tensor {} at bytes {}..{} of {}", name, t.begin, t.end, size - data_));
      ranges.emplace_back(t.begin, t.end);
      tensors_.emplace(name, std::move(t));
    }
    std::sort(ranges.begin(), ranges.end());
    int64_t at = 0;
    for (const auto& [begin, end] : ranges) {
      if (begin != at) damaged(fmt::format("hole or overlap at byte {}", at));
      at = end;
    }
    if (data_ + at != size) damaged(fmt::format("{} bytes of tensors, {} in the file", at, size - data_));
  } catch (...) {
    std::fclose(file_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() { std::fclose(file_); }

void SafetensorsFile::read(const std::string& name, int64_t begin, std::span<std::byte> bytes) const {
  const auto at = tensors_.find(name);
  require(at != tensors_.end(), Exit::checkpoint, "{} has no tensor {}", path_.string(), name);
  CHECK(0 <= begin && begin + int64_t(bytes.size()) <= at->second.end - at->second.begin,
        "{}: {} bytes from {} on of {}", path_.string(), bytes.size(), begin, name);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = pread(fileno(file_), bytes.data() + done, bytes.size() - done,
                              data_ + at->second.begin + begin + int64_t(done));
    if (got < 0 && errno == EINTR) continue;
    require(got > 0, Exit::checkpoint, "cannot read {} of {}: {} of {} bytes", name, path_.string(), done,
            bytes.size());
    done += size_t(got);
  }
}

}  // namespace cleave
