// Options for the model and for a rank, and their values.
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
  std::string tokenizer;  // empty: the tokenizer of the model folder, or bytes without one
  int64_t seq_len = 256;
  int token_bytes = 0;  // for data without a header; 0: derived from the values
  bool document_mask = false;
};

struct RankOptions : launcher::JobOptions {
  std::string device_memory, host_memory;
};

// Null for bytes. Error(data) or Error(usage) as open_tokenizer().
std::unique_ptr<text::Tokenizer> tokenizer_of(const ModelOptions& options);
// Error(usage) if the tokenizer has more ids than the vocabulary of `what`.
void require_tokenizer_fits(const text::Tokenizer& tokenizer, int64_t vocab, const std::string& what);
// Returns the tokenizer's digest as stored in checkpoints.
std::string digest_of(const text::Tokenizer& tokenizer);

// Returns the model of --model; the data define the vocabulary if it is open. Error(usage) for an
// unknown model, or if the vocabulary is undefined.
model::ModelConfig config_of(const ModelOptions& options, int64_t data_vocab);

// Returns how to open token files for this model: token width and valid ids.
data::TokenFile::Options reading_of(const ModelOptions& options);

// Returns the limits of --device_memory and --host_memory, or of the variables CLEAVE_DEVICE_MEMORY
// and CLEAVE_HOST_MEMORY.
MemoryLimits memory_limits(const RankOptions& options);

}  // namespace cleave::app
