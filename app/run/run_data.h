// Training samples and evaluation sets of a run.
#pragma once
#include <string>
#include <vector>

#include "app/run/run_options.h"
#include "data/batch_loader.h"
#include "data/data_sources.h"
#include "model/transformer.h"

namespace cleave::app {

// Coordinate of a rank on the data axis, which selects its samples: all ranks of a pipe read the
// same samples.
struct DataPlace {
  int rank = 0, ranks = 1;
};
DataPlace data_place(const config::DsConfig& config, int rank, int world);

class RunData {
 public:
  // Opens the training data. The options must outlive this. Error(usage), Error(data).
  explicit RunData(const RunOptions& wanted);

  // Error(data) if the training data have ids outside of the model's vocabulary.
  void use_vocab(int64_t vocab);
  void open_evaluation();  // opens the sets with that vocabulary

  const data::DataSources& training() const { return training_; }
  const std::vector<data::DataSources>& evaluation() const { return evaluation_; }  // as eval_sets

  // Returns the batches of a rank; this must outlive them.
  data::TokenBatches batches(const config::DsConfig& config, DataPlace place) const;
  data::EvalBatches eval_batches(size_t set, const config::DsConfig& config, DataPlace place) const;

  // Returns a description of samples of a step, by their positions in its batch: "5 of a.bin, 0 of b.bin".
  std::string samples_of(const data::TokenBatches& batches, int64_t step, Range positions) const;

 private:
  const RunOptions& wanted_;
  data::DataSources training_;
  std::vector<data::DataSources> evaluation_;
  int64_t vocab_ = 0;
};

}  // namespace cleave::app
