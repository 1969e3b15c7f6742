// Readers of whole checkpoints for tests/fuzz/readers.h.
#pragma once
#include <string>
#include <vector>

namespace cleave {

// The input is a file of torch.save.
bool read_torch(const std::string& bytes);
std::vector<std::string> torch_seeds();

// The input is a folder of DeepSpeed's: for each of its files four bytes with a length, and a pickle.
bool read_deepspeed(const std::string& bytes);
std::vector<std::string> deepspeed_seeds();

// The input is the manifest of a checkpoint with adapters, which is exported. Names and checksums of its
// records and its own are corrected first.
bool read_adapters(const std::string& bytes);
std::vector<std::string> adapters_seeds();

// The text of a manifest with the checksum that is right for it.
std::string sealed(std::string text);

}  // namespace cleave
