// Files of torch.save, whose tensors are read and whose programs are not run (checkpoint/pickle.h).
#pragma once
#include <memory>

#include "checkpoint/pickle.h"
#include "checkpoint/tensor_file.h"
#include "core/input_file.h"

namespace cleave::checkpoint {

class TorchFile final : public TensorFile {
 public:
  // A ZIP archive as torch has written it since version 1.6. Its tensors are those of its outermost dict,
  // under its keys; a value that is no tensor is an error. Error(checkpoint) names the file and what is wrong
  // with it.
  explicit TorchFile(std::filesystem::path path);
  // Any contents: tensors() is empty, and tensors are found in root() (locate). Inert as Pickle has it.
  TorchFile(std::filesystem::path path, const Pickle::Inert& inert);

  const std::map<std::string, StoredTensor>& tensors() const override { return tensors_; }
  const std::filesystem::path& path() const override { return path_; }
  void read(const std::string& name, int64_t begin, std::span<std::byte> bytes) const override;

  const Pickled& root() const { return pickle_->root(); }
  // Where the elements of a tensor of root() lie. Error(checkpoint) where they are not all in the file or do
  // not lie in row-major order without gaps.
  StoredTensor locate(const Pickled& tensor, const std::string& name) const;
  // Bytes from one offset of a located tensor.
  void read(const StoredTensor& tensor, int64_t begin, std::span<std::byte> bytes) const;

 private:
  void open_archive();
  void unpickle(const Pickle::Inert& inert);
  [[noreturn]] void refuse(const std::string& why) const;

  std::filesystem::path path_;
  InputFile file_;
  std::map<std::string, StoredTensor> tensors_;
  struct Entry {
    int64_t begin = 0, size = 0;
  };
  std::map<std::string, Entry> entries_;  // of the archive: bytes in the file
  std::string folder_;                    // in the archive
  std::unique_ptr<Pickle> pickle_;
};

}  // namespace cleave::checkpoint
