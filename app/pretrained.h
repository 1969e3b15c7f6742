// A checkpoint opened for evaluation and generation: its own model without anything of training, whole in
// fp32 on every rank, or laid out as a ds_config says.
#pragma once
#include <memory>
#include <string>

#include "app/options.h"
#include "runtime/engine.h"

namespace cleave {

struct PretrainedOptions {
  std::string dir, tag = "latest", config;
  int64_t micro_batch = 1;
  bool document_mask = false, strict = false, verbose = false, quiet = false;
  RankOptions ranks;
  AutoValues values;
};

void add_options(CLI::App& app, PretrainedOptions& options);

class Pretrained {
 public:
  // Reads what concerns this rank alone, connects the job, and reads the weights. Collective.
  // Error(usage) for a configuration that is refused or does not fit the ranks or the model,
  // Error(checkpoint), Error(memory).
  Pretrained(const PretrainedOptions& options, Job& job);

  Engine& engine() { return *engine_; }
  int64_t seq_len() const { return seq_len_; }
  int64_t vocab() const { return vocab_; }
  bool bytes() const { return bytes_; }  // tokens are bytes

 private:
  ModelConfig read_checkpoint(const PretrainedOptions& options);

  std::string name_;  // of the model
  std::unique_ptr<Engine> engine_;
  int64_t seq_len_ = 0, vocab_ = 0;
  bool bytes_ = false;
};

}  // namespace cleave
