// Weights of a model as a folder of safetensors files that transformers and others read.
#pragma once
#include <filesystem>
#include <functional>

#include "checkpoint/weight_reader.h"

namespace cleave::checkpoint {

struct WeightFormat {
  DType dtype = DType::fp32;              // fp32, bf16 or fp16
  int64_t max_file_size = 5'000'000'000;  // bytes of tensors in a file; a larger tensor has a file of its own
};

// model.safetensors, or model-00001-of-00003.safetensors and so on with model.safetensors.index.json, in the
// folder, which is there. Tensors have the order of the names; tied ones and buffers are left out. read()
// writes a record of kind "master" (Record::write), as CheckpointReader::read does; no more than pieces of a
// tensor are in memory at a time. Error(checkpoint) where a value is too large for the type, naming the
// tensor, or where a file cannot be written.
void write_weights(const std::filesystem::path& folder, const WeightNames& names, const WeightFormat& format,
                   const std::function<void(const Record&)>& read);

}  // namespace cleave::checkpoint
