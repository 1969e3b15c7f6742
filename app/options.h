// Options that several subcommands share, and what they stand for.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "device/memory.h"
#include "launcher/job.h"
#include "model/presets.h"
#include "text/tokenizer.h"

namespace cleave::app {

struct ModelOptions {
  std::string model = "tiny";
  std::string tokenizer;  // empty: that of the model's folder where there is one, else bytes
  int64_t seq_len = 256;
  bool document_mask = false;
};

struct RankOptions : launcher::JobOptions {
  std::string device_memory, host_memory;
};

// --deepspeed_config, and --deepspeed with a file, as a Hugging Face Trainer takes it; without one it is a
// flag that scripts written for DeepSpeed give. Two different files, and none where one is required, are
// refused.
void add_config_option(CLI::App& app, std::string& config, const std::string& help, bool required);
void add_options(CLI::App& app, ModelOptions& options);
void add_document_mask(CLI::App& app, bool& document_mask);
void add_options(CLI::App& app, RankOptions& options);

// What "auto" in a ds_config stands for, and the optimizer and schedule of one that has none, under the names
// and with the defaults of Hugging Face's Trainer.
void add_options(CLI::App& app, config::AutoValues& values);

// --steps of commands that train nothing: the length of a schedule that ends with the training.
void add_steps_option(CLI::App& app, config::AutoValues& values);

// Null for bytes. Error(data) or Error(usage) as open_tokenizer().
std::unique_ptr<text::Tokenizer> tokenizer_of(const ModelOptions& options);
// Error(usage) when the tokenizer has more ids than the vocabulary of `what`.
void require_tokenizer_fits(const text::Tokenizer& tokenizer, int64_t vocab, const std::string& what);
// As checkpoints keep it.
std::string digest_of(const text::Tokenizer& tokenizer);

// What --model stands for; a vocabulary that it leaves open is the data's. Error(usage) for an unknown model,
// or data that do not say the vocabulary that it leaves open.
model::ModelConfig config_of(const ModelOptions& options, int64_t data_vocab);

// From --device_memory and --host_memory, or the variables CLEAVE_DEVICE_MEMORY and CLEAVE_HOST_MEMORY.
MemoryLimits memory_limits(const RankOptions& options);

}  // namespace cleave::app
