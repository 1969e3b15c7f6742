// A checkpoint or a published model opened for evaluation and generation: its own model without anything of
// training, whole in fp32 on every rank, or laid out as a ds_config says.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/options.h"
#include "app/published_model.h"
#include "data/text/tokenizer.h"
#include "runtime/engine.h"

namespace cleave::app {

struct PretrainedOptions {
  std::string dir, tag = "latest", config;
  std::string tokenizer;  // empty: the one that the checkpoint names
  int64_t seq_len = 0;    // 0: that of the training
  int64_t micro_batch = 1;
  int64_t texts = 0;  // that grow at a time, on all ranks together
  bool needs_tokenizer = false, document_mask = false;
  bool strict = false, verbose = false, quiet = false;
  RankOptions ranks;
  config::AutoValues values;
};

void add_options(CLI::App& app, PretrainedOptions& options);

class Pretrained {
 public:
  // Reads what concerns this rank alone, connects the job, and reads the weights. Collective.
  // Error(usage) for a configuration that is refused or does not fit the ranks or the model, a tokenizer that
  // is larger than the model's vocabulary, or none where one is needed; Error(checkpoint), Error(memory),
  // Error(data).
  Pretrained(const PretrainedOptions& options, launcher::Job& job);

  runtime::Engine& engine() { return *engine_; }
  int64_t seq_len() const { return seq_len_; }
  int64_t vocab() const { return vocab_; }
  bool bytes() const { return bytes_; }  // tokens are bytes
  // Null where the model was trained on ids and nobody says which tokenizer made them.
  const text::Tokenizer* tokenizer() const { return tokenizer_.get(); }
  // Tokens that end a text: the model's, and if it names none, the tokenizer's.
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }

 private:
  model::ModelConfig read_checkpoint(const PretrainedOptions& options);
  model::ModelConfig read_published(const PretrainedOptions& options);
  void find_tokenizer(const PretrainedOptions& options, bool says);

  std::string name_;                               // of the model
  std::string tokenizer_path_, tokenizer_digest_;  // that the checkpoint names; empty where it names none
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::optional<PublishedModel> published_;  // none: a checkpoint
  std::unique_ptr<runtime::Engine> engine_;
  config::LoraConfig lora_;  // adapters that the checkpoint has
  int64_t seq_len_ = 0, vocab_ = 0;
  bool bytes_ = false;
  std::vector<int32_t> end_tokens_;
};

}  // namespace cleave::app
