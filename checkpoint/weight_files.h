// The files of a folder that hold a model's weights as Hugging Face publishes them: one file, or several with
// an index. Reading begins with headers; what is read then is what somebody asks for.
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
  // model.safetensors, or the files of model.safetensors.index.json; else pytorch_model.bin, or the files of
  // its index. Error(checkpoint) where there is none, where an index names files or tensors that are not
  // there, where two files have one tensor, and for damaged files.
  explicit WeightFiles(const std::filesystem::path& folder);
  // One file that is open already.
  explicit WeightFiles(std::unique_ptr<TensorFile> file);

  const std::filesystem::path& folder() const { return folder_; }
  bool has(const std::string& name) const { return places_.contains(name); }
  std::vector<std::string> names() const;
  // Where a tensor is stored that is there.
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

// The first file of a folder that holds weights in any format, or its index; empty where there is none, or no
// such folder.
std::string weights_in(const std::filesystem::path& folder);

}  // namespace cleave::checkpoint
