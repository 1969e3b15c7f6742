// Reads tensors of torch.save files without running their code (checkpoint/pickle.h).
#pragma once
#include <memory>

#include "checkpoint/pickle.h"
#include "checkpoint/tensor_file.h"
#include "core/input_file.h"

namespace cleave::checkpoint {

class TorchFile final : public TensorFile {
 public:
  // A ZIP archive in the format of torch 1.6 and later. Its tensors are the values of the outermost dict,
  // named by key; other values are an error. Throws Error(checkpoint) with the file and the fault.
  explicit TorchFile(std::filesystem::path path);
  // Accepts any contents: tensors() is empty, and locate() finds the tensors of root(). See Pickle for
  // `inert`.
  TorchFile(std::filesystem::path path, const Pickle::Inert& inert);

  const std::map<std::string, StoredTensor>& tensors() const override { return tensors_; }
  const std::filesystem::path& path() const override { return path_; }
  void read(const std::string& name, int64_t begin, std::span<std::byte> bytes) const override;

  const Pickled& root() const { return pickle_->root(); }
  // Byte range of a tensor of root(). Throws Error(checkpoint) if elements are outside of the file or not
  // contiguous in row-major order.
  StoredTensor locate(const Pickled& tensor, const std::string& name) const;
  // Reads bytes of a located tensor from byte `begin` on.
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
  std::map<std::string, Entry> entries_;  // of the archive: byte ranges in the file
  std::string folder_;                    // in the archive
  std::unique_ptr<Pickle> pickle_;
};

}  // namespace cleave::checkpoint
