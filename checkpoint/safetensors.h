// The safetensors file format: 8 bytes little-endian header length, a JSON header, then the tensors' bytes.
// Contains data, never code. Files are written sequentially and fsynced, so that object-store mounts work.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/tensor_file.h"
#include "core/input_file.h"
#include "device/tensor.h"

namespace cleave::checkpoint {

// Writes all tensors in order. Throws Error(checkpoint) with the file and the system's error.
struct NamedTensor {
  using Sink = std::function<void(const Tensor& piece)>;
  std::string name;
  std::vector<int64_t> shape;
  Tensor data;                                    // in host memory; if without an address,
  std::function<void(const Sink&)> produce = {};  // passes the elements to the sink in order, in pieces
};
struct WrittenFile {
  int64_t bytes = 0;
  std::string header;  // its JSON text
};
WrittenFile write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

class SafetensorsFile final : public TensorFile {
 public:
  // Reads and validates the header: offsets cover the file without holes or overlaps, and sizes match the
  // shapes. Throws Error(checkpoint) with the file and the fault. Tensor offsets count from the end of the
  // header.
  explicit SafetensorsFile(std::filesystem::path path);

  const std::map<std::string, StoredTensor>& tensors() const override { return tensors_; }
  const std::filesystem::path& path() const override { return path_; }
  const InputFile& file() const { return file_; }
  int64_t bytes() const { return file_.size(); }         // of the file
  const std::string& header() const { return header_; }  // its JSON text
  int64_t offset(const std::string& name) const;         // in the file, of a tensor's first byte
  void read(const std::string& name, int64_t begin, std::span<std::byte> bytes) const override;

 private:
  void read_header();

  std::filesystem::path path_;
  InputFile file_;
  int64_t data_ = 0;
  std::string header_;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace cleave::checkpoint
