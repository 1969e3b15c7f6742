#include "checkpoint/torch_file.h"

#include <algorithm>
#include <cstring>

#include "core/printable.h"
#include "core/range.h"

namespace cleave::checkpoint {
namespace {

constexpr int64_t kLargestPickle = int64_t{64} << 20, kLargestDirectory = kLargestPickle;  // bytes

struct StorageType {
  std::string_view name;
  DType type;
  bool foreign = false;
};
constexpr StorageType kStorages[] = {
    {"FloatStorage", DType::fp32},       {"HalfStorage", DType::fp16},
    {"BFloat16Storage", DType::bf16},    {"DoubleStorage", DType::fp64},
    {"LongStorage", DType::int64},       {"IntStorage", DType::int32},
    {"ByteStorage", DType::uint8},       {"BoolStorage", DType::uint8, true},
    {"CharStorage", DType::uint8, true}, {"ShortStorage", DType::uint16, true}};

// Little-endian numbers of a part of the archive.
class Bytes {
 public:
  Bytes(const InputFile& file, Range range) : bytes_(size_t(range.size())) { file.read(range.begin, bytes_); }
  template <class T>
  T at(int64_t place) const {
    require(place >= 0 && place + int64_t(sizeof(T)) <= int64_t(bytes_.size()), Exit::checkpoint,
            "its table of contents is damaged");
    T value;
    std::memcpy(&value, bytes_.data() + place, sizeof value);
    return value;
  }
  std::string text(int64_t place, int64_t size) const {
    require(place >= 0 && size >= 0 && place + size <= int64_t(bytes_.size()), Exit::checkpoint,
            "its table of contents is damaged");
    return {reinterpret_cast<const char*>(bytes_.data()) + place, size_t(size)};
  }
  int64_t size() const { return int64_t(bytes_.size()); }

 private:
  std::vector<std::byte> bytes_;
};

struct Directory {
  int64_t begin = 0, size = 0;
};

int64_t within(uint64_t value, int64_t most) {
  require(most >= 0 && value <= uint64_t(most), Exit::checkpoint,
          "its table of contents points outside of the file");
  return int64_t(value);
}

// Finds the central directory through the record at the end of the archive.
Directory directory_of(const InputFile& file) {
  constexpr int64_t kEnd = 22, kLocator = 20, kLongestComment = 65535;
  const int64_t size = file.size(), from = std::max<int64_t>(0, size - kEnd - kLongestComment - kLocator);
  const Bytes tail(file, {from, size});
  int64_t at = tail.size() - kEnd;
  while (at >= 0 && tail.at<uint32_t>(at) != 0x06054b50) --at;
  require(at >= 0, Exit::checkpoint,
          "it is not a ZIP archive, or it is truncated; files of PyTorch before 1.6 are not supported: load "
          "and save it again with a newer version, or as safetensors");
  Directory d{int64_t(tail.at<uint32_t>(at + 16)), int64_t(tail.at<uint32_t>(at + 12))};
  if (at >= kLocator && tail.at<uint32_t>(at - kLocator) == 0x07064b50) {  // ZIP64
    const int64_t record = within(tail.at<uint64_t>(at - kLocator + 8), size - 56);
    const Bytes end(file, {record, record + 56});
    require(end.at<uint32_t>(0) == 0x06064b50, Exit::checkpoint, "its table of contents is damaged");
    d = {within(end.at<uint64_t>(48), size), within(end.at<uint64_t>(40), size)};
  }
  require(d.begin + d.size <= size, Exit::checkpoint, "its table of contents points outside of the file");
  require(d.size <= kLargestDirectory, Exit::checkpoint,
          "its table of contents is too large (got {} bytes, expected at most {})", d.size,
          kLargestDirectory);
  return d;
}

struct ZipEntry {
  std::string name;
  uint64_t packed, size, header;
  uint16_t method;
};

// Reads the directory entry at `at`, and moves `at` to the next one.
ZipEntry entry_at(const Bytes& b, int64_t& at) {
  require(b.at<uint32_t>(at) == 0x02014b50, Exit::checkpoint, "its table of contents is damaged");
  ZipEntry e{
      {}, b.at<uint32_t>(at + 20), b.at<uint32_t>(at + 24), b.at<uint32_t>(at + 42), b.at<uint16_t>(at + 10)};
  const int64_t name = b.at<uint16_t>(at + 28), extra = b.at<uint16_t>(at + 30),
                comment = b.at<uint16_t>(at + 32);
  e.name = b.text(at + 46, name);
  int64_t field = at + 46 + name;
  const int64_t fields_end = field + extra;
  at = fields_end + comment;
  while (field + 4 <= fields_end) {
    const uint16_t id = b.at<uint16_t>(field);
    int64_t value = field + 4;
    field = value + b.at<uint16_t>(field + 2);
    if (id != 1) continue;  // ZIP64: values wider than 32 bits, in this order
    for (uint64_t* wide : {&e.size, &e.packed, &e.header})
      if (*wide == 0xffffffff) *wide = b.at<uint64_t>(value), value += 8;
  }
  return e;
}

}  // namespace

TorchFile::TorchFile(std::filesystem::path path, const Pickle::Inert& inert)
    : path_(std::move(path)), file_(path_.string(), Exit::checkpoint) {
  try {
    open_archive();
    unpickle(inert);
  } catch (const Error& e) {
    refuse(e.what());
  }
}

TorchFile::TorchFile(std::filesystem::path path) : TorchFile(std::move(path), Pickle::Inert()) {
  if (root().kind != Pickled::Kind::dict) refuse("it contains no dict of tensors");
  for (size_t i = 0; i < root().items.size(); i += 2) {
    const Pickled &key = *root().items[i], &value = *root().items[i + 1];
    if (key.kind != Pickled::Kind::text) refuse("a key of its dict is not a string");
    if (value.kind != Pickled::Kind::tensor)
      refuse(
          fmt::format("{} in it is not a tensor (expected the state_dict of a model)", in_quotes(key.text)));
    tensors_[key.text] = locate(value, key.text);
  }
}

void TorchFile::refuse(const std::string& why) const {
  fail(Exit::checkpoint, "{}: cannot be read as a torch.save file: {}", path_.string(), why);
}

void TorchFile::open_archive() {
  const Directory d = directory_of(file_);
  const Bytes directory(file_, {d.begin, d.begin + d.size});
  for (int64_t at = 0; at < directory.size();) {
    const ZipEntry e = entry_at(directory, at);
    require(e.method == 0 && e.packed == e.size, Exit::checkpoint, "{} in it is compressed",
            in_quotes(e.name));
    constexpr int64_t kHeader = 30;
    const int64_t header = within(e.header, file_.size() - kHeader);
    const Bytes local(file_, {header, header + kHeader});
    require(local.at<uint32_t>(0) == 0x04034b50, Exit::checkpoint,
            "{} is not at the position in its table of contents", in_quotes(e.name));
    const int64_t begin = header + kHeader + local.at<uint16_t>(26) + local.at<uint16_t>(28);
    require(begin <= file_.size() && e.size <= uint64_t(file_.size() - begin), Exit::checkpoint,
            "{} exceeds the end of the file", in_quotes(e.name));
    entries_[e.name] = {begin, int64_t(e.size)};
    if (e.name.ends_with("/data.pkl")) folder_ = e.name.substr(0, e.name.size() - 8);
  }
}

void TorchFile::unpickle(const Pickle::Inert& inert) {
  require(!folder_.empty(), Exit::checkpoint, "data.pkl is missing");
  const auto text = [&](const Entry& e) {
    require(e.size <= kLargestPickle, Exit::checkpoint,
            "its pickle is too large (got {} bytes, expected at most {})", e.size, kLargestPickle);
    std::vector<std::byte> bytes(size_t(e.size));
    file_.read(e.begin, bytes);
    return bytes;
  };
  if (const auto order = entries_.find(folder_ + "byteorder"); order != entries_.end()) {
    const std::vector<std::byte> bytes = text(order->second);
    require(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == "little",
            Exit::checkpoint, "its numbers are big-endian, which is not supported");
  }
  pickle_ = std::make_unique<Pickle>(text(entries_.at(folder_ + "data.pkl")), inert);
}

StoredTensor TorchFile::locate(const Pickled& tensor, const std::string& name) const {
  if (tensor.kind != Pickled::Kind::tensor) refuse(in_quotes(name) + " is not a tensor");
  const Pickled &storage = *tensor.items[0], &shape = *tensor.items[1], &strides = *tensor.items[2];
  const std::string& wanted = storage.items[0]->text;
  const auto* type = std::find_if(std::begin(kStorages), std::end(kStorages), [&](const StorageType& t) {
    return t.name == std::string_view(wanted).substr(wanted.rfind('.') + 1);
  });
  if (type == std::end(kStorages))
    refuse(fmt::format("{} has the unsupported storage type {}", in_quotes(name), in_quotes(wanted)));
  const auto entry = entries_.find(folder_ + "data/" + storage.text);
  if (entry == entries_.end()) refuse("the elements of " + in_quotes(name) + " are missing");
  StoredTensor t;
  t.dtype = type->type;
  if (type->foreign) t.foreign = type->name;
  const int64_t room = entry->second.size / size_of(t.dtype);
  if (shape.items.size() > kMostDims) refuse(in_quotes(name) + " has an impossible shape");
  __int128 numel = 1;  // 128 bits, so that no product of the file's numbers wraps around
  for (const Pickled* d : shape.items) {
    if (d->integer < 0 || numel > room) refuse(in_quotes(name) + " has an impossible shape");
    numel *= d->integer;
    t.shape.push_back(d->integer);
  }
  if (tensor.integer < 0 || tensor.integer + numel > room)
    refuse(fmt::format("{} has more elements than the file", in_quotes(name)));
  int64_t stride = 1;
  for (size_t d = t.shape.size(); d-- > 0 && numel > 0;) {
    if (t.shape[d] != 1 && strides.items[d]->integer != stride)
      refuse(in_quotes(name) + " is not in row-major order; save a contiguous copy of it");
    stride *= t.shape[d];
  }
  t.begin = entry->second.begin + tensor.integer * size_of(t.dtype);
  t.end = t.begin + int64_t(numel) * size_of(t.dtype);
  return t;
}

void TorchFile::read(const StoredTensor& tensor, int64_t begin, std::span<std::byte> bytes) const {
  CHECK(0 <= begin && begin + int64_t(bytes.size()) <= tensor.end - tensor.begin,
        "{}: cannot read {} bytes at {}", path_.string(), bytes.size(), begin);
  file_.read(tensor.begin + begin, bytes);
}

void TorchFile::read(const std::string& name, int64_t begin, std::span<std::byte> bytes) const {
  const auto at = tensors_.find(name);
  require(at != tensors_.end(), Exit::checkpoint, "{}: the tensor {} is missing", path_.string(),
          in_quotes(name));
  read(at->second, begin, bytes);
}

}  // namespace cleave::checkpoint
