#include "checkpoint/weight_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "checkpoint/manifest.h"
#include "core/printable.h"

namespace cleave::checkpoint {
namespace {

constexpr int64_t kTile = int64_t{1} << 18;  // elements in transit at a time

// Collects all faults of a folder.
class WeightProblems {
 public:
  void add(std::string text) {
    if (++count_ <= kShown) all_ += "\n  " + std::move(text);
  }
  void require_none(const std::filesystem::path& folder) const {
    require(count_ == 0, Exit::checkpoint, "{}: the weights do not match its config.json:{}{}",
            folder.string(), all_, count_ > kShown ? fmt::format("\n  and {} more", count_ - kShown) : "");
  }

 private:
  static constexpr int kShown = 10;
  std::string all_;
  int count_ = 0;
};

// Reads consecutive elements of a tensor as fp32, through `bytes`.
void read_floats(const TensorFile& file, const std::string& name, DType type, Range elements, float* to,
                 std::vector<std::byte>& bytes) {
  for (Range part{elements.begin, 0}; part.begin < elements.end; part.begin = part.end) {
    part.end = std::min(elements.end, part.begin + kTile);
    const size_t size = size_t(part.size() * size_of(type));
    if (bytes.size() < size) bytes.resize(size);
    const auto held = std::span(bytes).first(size);
    float* out = to + (part.begin - elements.begin);
    file.read(name, part.begin * size_of(type), held);
    const auto convert = [&]<class T>(T) {
      const T* from = reinterpret_cast<const T*>(held.data());
      for (int64_t i = 0; i < part.size(); ++i) {
        if constexpr (std::is_same_v<T, double>)
          out[i] = float(from[i]);
        else
          out[i] = to_float(from[i]);
      }
    };
    if (type == DType::fp64)
      convert(double{});
    else
      with_float(type, convert);
  }
}

// Counts non-finite values.
int64_t count_wrong(const float* values, int64_t count) {
  return std::count_if(values, values + count, [](float v) { return !std::isfinite(v); });
}

// Adjacent columns of adjacent rows of a matrix.
struct Rectangle {
  Range rows, columns;
  int64_t numel() const { return rows.size() * columns.size(); }
};

// Splits ranges of the row-major order into consecutive rectangles.
class Rectangles {
 public:
  explicit Rectangles(int64_t columns) : columns_(columns) {}
  void add(Range elements) {
    while (!elements.empty()) {
      const int64_t row = elements.begin / columns_, column = elements.begin % columns_;
      const int64_t rows = column == 0 ? elements.size() / columns_ : 0;
      if (rows > 0) {
        append({{row, row + rows}, {0, columns_}});
        elements.begin += rows * columns_;
      } else {
        const int64_t end = std::min(columns_, column + elements.size());
        append({{row, row + 1}, {column, end}});
        elements.begin += end - column;
      }
    }
  }
  const std::vector<Rectangle>& all() const { return all_; }

 private:
  void append(Rectangle r) {
    if (!all_.empty() && all_.back().columns == r.columns && all_.back().rows.end == r.rows.begin)
      all_.back().rows.end = r.rows.end;
    else
      all_.push_back(r);
  }
  int64_t columns_;
  std::vector<Rectangle> all_;
};

}  // namespace

WeightReader::WeightReader(const WeightFiles& files, const WeightNames& names) : files_(files) {
  WeightProblems problems;
  std::set<std::string> known;
  for (const WeightName& name : names.tensors) {
    known.insert(name.file_name);
    if (!files.has(name.file_name)) {
      problems.add(fmt::format("{} is missing", name.file_name));
      continue;
    }
    const StoredTensor& stored = files.tensor(name.file_name);
    const std::string where =
        fmt::format("{} in {}", name.file_name, files.file(name.file_name).path().filename().string());
    std::vector<int64_t> shape = name.shape;
    if (name.transposed) std::reverse(shape.begin(), shape.end());
    if (stored.shape != shape)
      problems.add(fmt::format("{} has the wrong shape (got [{}], expected [{}])", where,
                               fmt::join(stored.shape, ", "), fmt::join(shape, ", ")));
    if (!stored.foreign.empty() || !is_float(stored.dtype))
      problems.add(
          fmt::format("{} has an unsupported type (got {}, expected fp32, bf16, fp16 or fp64); quantized "
                      "weights are not supported",
                      where, stored.foreign.empty() ? name_of(stored.dtype) : stored.foreign));
    sources_.emplace(name.tensor, source_of(name));
  }
  for (const auto& [file_name, tensor] : names.tied) {
    known.insert(file_name);
    const auto at = sources_.find(tensor);
    if (!files.has(file_name) || at == sources_.end()) continue;
    Source tied = source_of({tensor, at->second.name.shape, file_name, at->second.name.transposed});
    if (tied.stored.shape != at->second.stored.shape || !tied.stored.foreign.empty() ||
        !is_float(tied.stored.dtype))
      problems.add(fmt::format("{} is tied to {} but has another shape or type", file_name,
                               at->second.name.file_name));
    tied_.emplace_back(std::move(tied), tensor);
  }
  for (const std::string& name : files.names()) {
    const bool buffer = std::any_of(names.buffers.begin(), names.buffers.end(),
                                    [&](const std::string& end) { return name.ends_with(end); });
    if (!buffer && !known.contains(name))
      problems.add(fmt::format("{} in {} is not a parameter of the model", printable(name),
                               files.file(name).path().filename().string()));
  }
  problems.require_none(files.folder());
}

WeightReader::Source WeightReader::source_of(const WeightName& name) const {
  return {name, &files_.file(name.file_name), files_.tensor(name.file_name)};
}

const WeightReader::Source& WeightReader::source(const std::string& tensor) const {
  const auto at = sources_.find(tensor);
  require(at != sources_.end(), Exit::checkpoint, "{}: weights of {} are missing", files_.folder().string(),
          tensor);
  return at->second;
}

void WeightReader::read(const Record& record) const {
  const Source& from = source(record.tensor);
  CHECK(record.kind == "master" && record.shape == from.name.shape, "{} of {} in a folder of weights",
        record.kind, record.tensor);
  const int64_t wanted = record.elements.numel();
  std::vector<float> memory(size_t(std::min(wanted, kWeightPiece)));
  for (Range window{0, 0}; window.begin < wanted; window.begin = window.end) {
    window.end = std::min(wanted, window.begin + kWeightPiece);
    fill(from, record.elements, window, memory.data());
    if (count_wrong(memory.data(), window.size()) > 0) refuse_values(from);
    record.write(window, Tensor(memory.data(), DType::fp32, {window.size()}, MemoryKind::host));
  }
}

// Counts over the whole tensor, so that all ranks with a part of it report the same.
void WeightReader::refuse_values(const Source& source) const {
  const int64_t numel = numel_of(source.name.shape);
  std::vector<float> memory(size_t(std::min(numel, kWeightPiece)));
  int64_t wrong = 0;
  for (Range window{0, 0}; window.begin < numel; window.begin = window.end) {
    window.end = std::min(numel, window.begin + int64_t(memory.size()));
    fill(source, Elements{{0, numel}}, window, memory.data());
    wrong += count_wrong(memory.data(), window.size());
  }
  fail(Exit::checkpoint,
       "{}: {} of {} values of {} are NaN or infinite in fp32; the training diverged, or the file is "
       "damaged; use another copy or an earlier checkpoint",
       source.file->path().string(), wrong, numel, source.name.file_name);
}

void WeightReader::fill(const Source& source, const Elements& elements, Range window, float* to) const {
  const WeightName& name = source.name;
  const Elements whole{{0, numel_of(name.shape)}};
  std::vector<std::byte> bytes;
  if (!name.transposed)
    return each_overlap(elements, window, whole, [&](int64_t at, int64_t from, int64_t n) {
      read_floats(*source.file, name.file_name, source.stored.dtype, {from, from + n},
                  to + (at - window.begin), bytes);
    });
  Rectangles rectangles(name.shape[1]);
  each_overlap(elements, window, whole, [&](int64_t, int64_t from, int64_t n) {
    rectangles.add({from, from + n});
  });
  std::vector<float> tile;
  for (const Rectangle& r : rectangles.all()) {
    // A column of the parameter is a row of the file: read several file rows at a time, limited to the
    // rectangle's rows.
    const int64_t height = r.rows.size(), width = r.columns.size(), length = name.shape[0];
    const int64_t most = std::max<int64_t>(1, kTile / height);
    tile.resize(size_t(std::min(most, width) * height));
    for (Range some{r.columns.begin, 0}; some.begin < r.columns.end; some.begin = some.end) {
      some.end = std::min(r.columns.end, some.begin + most);
      if (height == length)
        read_floats(*source.file, name.file_name, source.stored.dtype,
                    {some.begin * length, some.end * length}, tile.data(), bytes);
      else
        for (int64_t c = some.begin; c < some.end; ++c)
          read_floats(*source.file, name.file_name, source.stored.dtype, r.rows.shifted(c * length),
                      tile.data() + (c - some.begin) * height, bytes);
      for (int64_t row = 0; row < height; ++row)
        for (int64_t c = 0; c < some.size(); ++c)
          to[row * width + (some.begin - r.columns.begin) + c] = tile[size_t(c * height + row)];
    }
    to += r.numel();
  }
}

void WeightReader::require_tied() const {
  std::vector<float> mine(size_t{1} << 20), other(mine.size());
  for (const auto& [tied, tensor] : tied_) {
    const Source& from = source(tensor);
    const int64_t numel = numel_of(from.name.shape);
    for (Range window{0, 0}; window.begin < numel; window.begin = window.end) {
      window.end = std::min(numel, window.begin + int64_t(mine.size()));
      fill(from, {{0, numel}}, window, mine.data());
      fill(tied, {{0, numel}}, window, other.data());
      require(std::equal(mine.begin(), mine.begin() + window.size(), other.begin(),
                         [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }),
              Exit::checkpoint,
              "{}: {} and {} differ, but config.json ties them (tie_word_embeddings); set it to false if "
              "they are separate",
              files_.folder().string(), tied.name.file_name, from.name.file_name);
    }
  }
}

std::string WeightReader::types() const {
  std::set<std::string_view> types;
  for (const auto& [tensor, source] : sources_) types.insert(name_of(source.stored.dtype));
  return fmt::format("{}", fmt::join(types, " and "));
}

}  // namespace cleave::checkpoint
