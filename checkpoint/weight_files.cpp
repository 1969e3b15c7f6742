#include "checkpoint/weight_files.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch_file.h"
#include "core/json.h"
#include "core/printable.h"

namespace cleave::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr int64_t kLargestIndex = int64_t{64} << 20;  // bytes

bool stands(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// File of each tensor by the index.
std::map<std::string, std::string> weight_map_of(const fs::path& path) {
  const std::string text = InputFile(path.string(), Exit::checkpoint).text(kLargestIndex);
  const json index = parse_json(text, path.string(), Exit::checkpoint, "download it again");
  const bool has_map = index.is_object() && index.contains("weight_map") && index["weight_map"].is_object();
  require(has_map, Exit::checkpoint,
          "{}: is damaged or not an index of weights (expected a JSON object with a \"weight_map\"); "
          "download it again",
          path.string());
  std::map<std::string, std::string> map;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    require(file.is_string() && is_plain_name(file.get_ref<const std::string&>()), Exit::checkpoint,
            "{}: {} refers to {}, which is not a file name", path.string(), in_quotes(tensor),
            in_quotes(file.dump()));
    map[tensor] = file;
  }
  return map;
}

}  // namespace

std::string weights_in(const fs::path& folder) {
  std::error_code error;
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string(), end = entry.path().extension().string();
    const bool torch = name.starts_with("pytorch_model") && (end == ".bin" || end == ".json");
    const bool index = name.ends_with(".safetensors.index.json");
    if (torch || index || end == ".safetensors" || end == ".pth" || end == ".gguf" || name == "tf_model.h5" ||
        name == "flax_model.msgpack")
      found.insert(name);
  }
  return found.empty() ? "" : *found.begin();
}

WeightFiles::WeightFiles(const fs::path& folder) : folder_(folder) {
  for (const std::string name : {"model.safetensors", "pytorch_model.bin"}) {
    if (stands(folder / (name + ".index.json"))) {
      open_index(folder / (name + ".index.json"));
      return;
    }
    if (stands(folder / name)) {
      open(folder / name);
      return;
    }
  }
  refuse_folder();
}

void WeightFiles::refuse_folder() const {
  const std::string other = weights_in(folder_);
  fail(Exit::checkpoint,
       "{}: contains neither model.safetensors nor pytorch_model.bin nor an index of such files{}; give a "
       "model folder from save_pretrained of transformers",
       folder_.string(), other.empty() ? "" : "; its files, such as " + other + ", are not supported");
}

WeightFiles::WeightFiles(std::unique_ptr<TensorFile> file) : folder_(file->path()) { add(std::move(file)); }

void WeightFiles::open(const fs::path& path) {
  if (path.extension() == ".bin" || path.extension() == ".pt")
    add(std::make_unique<TorchFile>(path));
  else
    add(std::make_unique<SafetensorsFile>(path));
}

void WeightFiles::add(std::unique_ptr<TensorFile> opened) {
  const TensorFile& file = *files_.emplace_back(std::move(opened));
  for (const auto& [name, tensor] : file.tensors()) {
    const auto [at, is_new] = places_.emplace(name, &file);
    require(is_new, Exit::checkpoint, "{}: has the same tensor as {}: {}", at->second->path().string(),
            file.path().string(), in_quotes(name));
  }
}

void WeightFiles::open_index(const fs::path& index) {
  const std::map<std::string, std::string> map = weight_map_of(index);
  std::set<std::string> wanted, missing;
  for (const auto& [tensor, file] : map) (stands(folder_ / file) ? wanted : missing).insert(file);
  require(missing.empty(), Exit::checkpoint,
          "{}: needs {}, which {} missing; copy all files of the model into the folder", index.string(),
          fmt::join(missing, ", "), missing.size() == 1 ? "is" : "are");
  for (const std::string& file : wanted) open(folder_ / file);
  for (const auto& [tensor, file] : map) {
    const auto at = places_.find(tensor);
    require(at != places_.end() && at->second->path() == folder_ / file, Exit::checkpoint,
            "{}: lists {} in {}, which does not contain this tensor", index.string(), in_quotes(tensor),
            file);
  }
  for (const auto& [tensor, file] : places_)
    require(map.contains(tensor), Exit::checkpoint,
            "{}: does not list {}, which is in {}; the index belongs to other files; copy all files of the "
            "model again",
            index.string(), in_quotes(tensor), file->path().filename().string());
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : places_) names.push_back(name);
  return names;
}

const TensorFile& WeightFiles::file(const std::string& name) const {
  const auto at = places_.find(name);
  CHECK(at != places_.end(), "{}: the tensor {} is missing", folder_.string(), name);
  return *at->second;
}

const StoredTensor& WeightFiles::tensor(const std::string& name) const {
  return file(name).tensors().at(name);
}

}  // namespace cleave::checkpoint
