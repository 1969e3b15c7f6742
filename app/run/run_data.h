// The data of a run: the samples that it is trained on, and the sets that it is evaluated on.
#pragma once
#include <string>
#include <vector>

#include "app/run/run_options.h"
#include "data/batch_loader.h"
#include "data/data_sources.h"
#include "model/transformer.h"

namespace cleave::app {

// A rank's place on the data axis, which decides what it reads: all ranks of a pipe read the same samples.
struct DataPlace {
  int rank = 0, ranks = 1;
};
DataPlace data_place(const config::DsConfig& config, int rank, int world);

class RunData {
 public:
  // Opens the training data. The options must outlive this. Error(usage), Error(data).
  explicit RunData(const RunOptions& wanted);

  // Error(data) where the training data have ids that the model does not know.
  void use_vocab(int64_t vocab);
  void open_evaluation();  // the sets, with that vocabulary

  const data::DataSources& training() const { return training_; }
  const std::vector<data::DataSources>& evaluation() const { return evaluation_; }  // as eval_sets

  // The batches of a rank; this must outlive them.
  data::TokenBatches batches(const config::DsConfig& config, DataPlace place) const;
  data::EvalBatches eval_batches(size_t set, const config::DsConfig& config, DataPlace place) const;

  // For people: "its samples are 5, 2 of a.bin and 0, 3 of b.bin".
  std::string samples_of(const data::TokenBatches& batches, int64_t step, int64_t batch) const;

 private:
  const RunOptions& wanted_;
  data::DataSources training_;
  std::vector<data::DataSources> evaluation_;
  int64_t vocab_ = 0;
};

}  // namespace cleave::app
