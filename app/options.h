// What is said of a model and of a rank, and what it stands for.
#pragma once
#include <memory>
#include <string>

#include "data/text/tokenizer.h"
#include "data/token_file.h"
#include "device/memory.h"
#include "launcher/job.h"
#include "model/presets.h"

namespace cleave::app {

struct ModelOptions {
  std::string model = "tiny";
  std::string tokenizer;  // empty: that of the model's folder where there is one, else bytes
  int64_t seq_len = 256;
  int token_bytes = 0;  // of data without a header; 0: by their values
  bool document_mask = false;
};

struct RankOptions : launcher::JobOptions {
  std::string device_memory, host_memory;
};

// Null for bytes. Error(data) or Error(usage) as open_tokenizer().
std::unique_ptr<text::Tokenizer> tokenizer_of(const ModelOptions& options);
// Error(usage) when the tokenizer has more ids than the vocabulary of `what`.
void require_tokenizer_fits(const text::Tokenizer& tokenizer, int64_t vocab, const std::string& what);
// The tokenizer's digest as checkpoints keep it.
std::string digest_of(const text::Tokenizer& tokenizer);

// What --model stands for; a vocabulary that it leaves open is the data's. Error(usage) for an unknown model,
// or data that do not say the vocabulary that it leaves open.
model::ModelConfig config_of(const ModelOptions& options, int64_t data_vocab);

// How token files are opened for this model: their width, and which ids are plausible.
data::TokenFile::Options reading_of(const ModelOptions& options);

// The limits that --device_memory and --host_memory give, or the variables CLEAVE_DEVICE_MEMORY and
// CLEAVE_HOST_MEMORY.
MemoryLimits memory_limits(const RankOptions& options);

}  // namespace cleave::app
