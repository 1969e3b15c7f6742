// Weight files of a model folder in Hugging Face's layout: one file, or several with an index. Opening reads
// headers only.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/tensor_file.h"

namespace cleave::checkpoint {

class WeightFiles {
 public:
  // Opens model.safetensors, or the files of model.safetensors.index.json; otherwise pytorch_model.bin, or
  // the files of its index. Throws Error(checkpoint) if none exists, if the index names missing files or
  // tensors, if two files have the same tensor, or if a file is damaged.
  explicit WeightFiles(const std::filesystem::path& folder);
  // Wraps one open file.
  explicit WeightFiles(std::unique_ptr<TensorFile> file);

  const std::filesystem::path& folder() const { return folder_; }
  bool has(const std::string& name) const { return places_.contains(name); }
  std::vector<std::string> names() const;
  // Location of an existing tensor.
  const StoredTensor& tensor(const std::string& name) const;
  const TensorFile& file(const std::string& name) const;
  int files() const { return int(files_.size()); }

 private:
  void open(const std::filesystem::path& path);
  void add(std::unique_ptr<TensorFile> file);
  [[noreturn]] void refuse_folder() const;
  void open_index(const std::filesystem::path& index);

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  std::map<std::string, const TensorFile*> places_;
};

// First weight file of any format in a folder, or its index; empty if there is none or the folder does not
// exist.
std::string weights_in(const std::filesystem::path& folder);

}  // namespace cleave::checkpoint
