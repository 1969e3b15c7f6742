// Readers of whole checkpoints for tests/fuzz/readers.h.
#pragma once
#include <string>
#include <vector>

namespace cleave {

// The input is a torch.save file.
bool read_torch(const std::string& bytes);
std::vector<std::string> torch_seeds();

// The input is a DeepSpeed folder: for each file, a length of four bytes and a pickle.
bool read_deepspeed(const std::string& bytes);
std::vector<std::string> deepspeed_seeds();

// The input is the manifest of a checkpoint with adapters, for an export. Names and checksums of
// its records, and its own checksum, are corrected first.
bool read_adapters(const std::string& bytes);
std::vector<std::string> adapters_seeds();

// Returns the text of a manifest with its correct checksum.
std::string sealed(std::string text);

}  // namespace cleave
