// A checkpoint or published model, opened for evaluation and generation: its model without training
// state, complete in fp32 on every rank, or distributed as a ds_config says.
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
  std::string tokenizer;  // empty: the tokenizer of the checkpoint
  int64_t seq_len = 0;    // 0: as in training
  int64_t micro_batch = 1;
  int64_t texts = 0;  // generated at a time, on all ranks together
  bool needs_tokenizer = false, document_mask = false;
  bool strict = false, verbose = false, quiet = false;
  RankOptions ranks;
  config::AutoValues values;
};

void add_options(CLI::App& app, PretrainedOptions& options);

class Pretrained {
 public:
  // Checks this rank's inputs, connects the job, and reads the weights. Collective. Error(usage)
  // for an invalid configuration, one that does not match the ranks or the model, a tokenizer
  // larger than the model's vocabulary, or a missing tokenizer; Error(checkpoint), Error(memory),
  // Error(data).
  Pretrained(const PretrainedOptions& options, launcher::Job& job);

  runtime::Engine& engine() { return *engine_; }
  int64_t seq_len() const { return seq_len_; }
  int64_t vocab() const { return vocab_; }
  bool bytes() const { return bytes_; }  // tokens are bytes
  // Null if the model was trained on ids and no tokenizer is named.
  const text::Tokenizer* tokenizer() const { return tokenizer_.get(); }
  // Returns the tokens that end a text: those of the model, or else of the tokenizer.
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }

 private:
  model::ModelConfig read_checkpoint(const PretrainedOptions& options);
  model::ModelConfig read_published(const PretrainedOptions& options);
  void find_tokenizer(const PretrainedOptions& options, bool says);

  std::string name_;                               // of the model
  std::string tokenizer_path_, tokenizer_digest_;  // named by the checkpoint; may be empty
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::optional<PublishedModel> published_;  // empty for a checkpoint
  std::unique_ptr<runtime::Engine> engine_;
  config::LoraConfig lora_;  // adapters in the checkpoint
  int64_t seq_len_ = 0, vocab_ = 0;
  bool bytes_ = false;
  std::vector<int32_t> end_tokens_;
};

}  // namespace cleave::app
