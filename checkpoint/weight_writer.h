// Writes model weights as a folder of safetensors files that transformers and other libraries can read.
#pragma once
#include <filesystem>
#include <functional>

#include "checkpoint/weight_reader.h"

namespace cleave::checkpoint {

struct WeightFormat {
  DType dtype = DType::fp32;              // fp32, bf16 or fp16
  int64_t max_file_size = 5'000'000'000;  // bytes of tensors per file; a larger tensor has its own file
};

// Writes model.safetensors, or model-00001-of-00003.safetensors etc. with model.safetensors.index.json, to an
// existing folder. Tensors are in the order of the names; tied tensors and buffers are omitted. read() fills
// a record of kind "master" (Record::write), as CheckpointReader::read does; only pieces of a tensor are in
// memory. Throws Error(checkpoint) if a value overflows the type, naming the tensor, or if a file cannot be
// written.
void write_weights(const std::filesystem::path& folder, const WeightNames& names, const WeightFormat& format,
                   const std::function<void(const Record&)>& read);

}  // namespace cleave::checkpoint
