#include "checkpoint/weight_writer.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/manifest.h"

namespace cleave::checkpoint {
namespace {

using Read = std::function<void(const Record&)>;

// Passes fp32 values to a sink in the file's type.
class Rounded {
 public:
  Rounded(DType type, const std::string& name, const NamedTensor::Sink& sink)
      : type_(type), name_(name), sink_(sink) {}

  void add(const float* values, int64_t n) {
    bytes_.resize(size_t(n * size_of(type_)));
    with_float(type_, [&]<class T>(T) {
      T* to = reinterpret_cast<T*>(bytes_.data());
      for (int64_t i = 0; i < n; ++i) {
        to[i] = from_float<T>(values[i]);
        require(std::isfinite(to_float(to[i])) || !std::isfinite(values[i]), Exit::checkpoint,
                "{}: contains {}, which does not fit {}; choose another --dtype", name_, values[i],
                name_of(type_));
      }
    });
    sink_(Tensor(bytes_.data(), type_, {n}, MemoryKind::host));
  }

 private:
  DType type_;
  const std::string& name_;
  const NamedTensor::Sink& sink_;
  std::vector<std::byte> bytes_;
};

void stream_plain(const WeightName& w, const Read& read, Rounded& out) {
  const Elements all{{0, numel_of(w.shape)}};
  read({"master", w.tensor, w.shape, all, {}, [&](Range, Tensor from) {
          out.add(from.as<float>(), from.numel());
        }});
}

// File rows are columns of the parameter; converts several at a time.
void stream_transposed(const WeightName& w, const Read& read, Rounded& out) {
  const int64_t rows = w.shape[0], columns = w.shape[1];
  const int64_t most = std::clamp<int64_t>(kWeightPiece / rows, 1, columns);
  std::vector<float> tile(size_t(rows * most)), turned(tile.size());
  for (Range some{0, 0}; some.begin < columns; some.begin = some.end) {
    some.end = std::min(columns, some.begin + most);
    const int64_t n = some.size();
    Elements part{{some.begin, (rows - 1) * columns + some.end}, n, columns};
    if (n == columns) part.run = part.stride = 0;
    read({"master", w.tensor, w.shape, part, {}, [&](Range at, Tensor from) {
            std::copy_n(from.as<float>(), from.numel(), tile.data() + at.begin);
          }});
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t c = 0; c < n; ++c) turned[size_t(c * rows + row)] = tile[size_t(row * n + c)];
    out.add(turned.data(), n * rows);
  }
}

// Groups of consecutive tensors that fit into one file.
std::vector<Range> files_of(const WeightNames& names, const WeightFormat& format) {
  std::vector<Range> files{{0, 0}};
  int64_t bytes = 0;
  for (int64_t i = 0; i < int64_t(names.tensors.size()); ++i) {
    const int64_t more = numel_of(names.tensors[size_t(i)].shape) * size_of(format.dtype);
    if (!files.back().empty() && bytes + more > format.max_file_size) files.push_back({i, i}), bytes = 0;
    files.back().end = i + 1, bytes += more;
  }
  return files;
}

void write_index(const std::filesystem::path& path, const nlohmann::json& index) {
  std::ofstream out(path);
  out << index.dump(2) << "\n";
  out.close();
  require(out.good(), Exit::checkpoint, "{}: cannot be written; check the free space", path.string());
}

}  // namespace

void write_weights(const std::filesystem::path& folder, const WeightNames& names, const WeightFormat& format,
                   const Read& read) {
  const std::vector<Range> files = files_of(names, format);
  nlohmann::json map = nlohmann::json::object();
  int64_t bytes = 0, elements = 0;
  for (size_t f = 0; f < files.size(); ++f) {
    const std::string file = files.size() == 1
                                 ? "model.safetensors"
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, files.size());
    std::vector<NamedTensor> tensors;
    for (int64_t i = files[f].begin; i < files[f].end; ++i) {
      const WeightName& w = names.tensors[size_t(i)];
      const int64_t numel = numel_of(w.shape);
      std::vector<int64_t> shape = w.shape;
      if (w.transposed) std::reverse(shape.begin(), shape.end());
      tensors.push_back({w.file_name, shape, Tensor(nullptr, format.dtype, {numel}, MemoryKind::host),
                         [&w, &format, &read](const NamedTensor::Sink& sink) {
                           Rounded out(format.dtype, w.tensor, sink);
                           (w.transposed ? stream_transposed : stream_plain)(w, read, out);
                         }});
      map[w.file_name] = file, bytes += numel * size_of(format.dtype), elements += numel;
    }
    write_safetensors(folder / file, tensors, {{"format", "pt"}});
  }
  if (files.size() > 1)
    write_index(folder / "model.safetensors.index.json",
                {{"metadata", {{"total_parameters", elements}, {"total_size", bytes}}}, {"weight_map", map}});
}

}  // namespace cleave::checkpoint
