#include "app/run/run_data.h"

#include <algorithm>

#include "runtime/step/settings.h"

namespace cleave::app {

DataPlace data_place(const config::DsConfig& config, int rank, int world) {
  const MeshShape mesh = runtime::mesh_shape(config, world);
  return {mesh.place(rank).data, mesh.data};
}

RunData::RunData(const RunOptions& wanted)
    : wanted_(wanted), training_(wanted.data, reading_of(wanted.model), "--data", wanted.texts) {}

void RunData::use_vocab(int64_t vocab) {
  vocab_ = vocab;
  training_.use_vocab(vocab), training_.note_contents();
  require(training_.vocab() <= vocab, Exit::data,
          "{}: contains ids above the vocabulary of the model (got ids below {}, but {} has a vocabulary of "
          "{}); use the tokenizer of the model",
          wanted_.named(wanted_.data), training_.vocab(), wanted_.model.model, vocab);
}

void RunData::open_evaluation() {
  for (const EvalSet& set : wanted_.eval_sets)
    evaluation_.emplace_back(
        set.data, data::TokenFile::Options{.token_bytes = wanted_.model.token_bytes, .vocab = vocab_},
        "--eval_data", wanted_.texts);
  for (data::DataSources& set : evaluation_) set.note_contents();
}

data::TokenBatches RunData::batches(const config::DsConfig& config, DataPlace place) const {
  return data::TokenBatches(training_.sources(), {.seq_len = wanted_.model.seq_len,
                                                  .micro_batch = config.train_micro_batch_size_per_gpu,
                                                  .accumulation = config.gradient_accumulation_steps,
                                                  .rank = place.rank,
                                                  .ranks = place.ranks,
                                                  .seed = wanted_.seed,
                                                  .drop_last = config.dataloader_drop_last,
                                                  .pack = wanted_.pack,
                                                  .document_mask = wanted_.model.document_mask});
}

data::EvalBatches RunData::eval_batches(size_t set, const config::DsConfig& config, DataPlace place) const {
  return data::EvalBatches(evaluation_[set].files(), {.seq_len = wanted_.model.seq_len,
                                                      .micro_batch = config.train_micro_batch_size_per_gpu,
                                                      .rank = place.rank,
                                                      .ranks = place.ranks,
                                                      .pack = wanted_.pack,
                                                      .document_mask = wanted_.model.document_mask});
}

std::string RunData::samples_of(const data::TokenBatches& batches, int64_t step, Range positions) const {
  constexpr int64_t kShown = 8;
  std::string text;
  for (int64_t at = 0; at < std::min<int64_t>(kShown, positions.size()); ++at) {
    const data::Blend::SourceSample place = batches.place(step, positions.begin + at);
    text += fmt::format("{}{} of {}", at > 0 ? ", " : "", place.sample,
                        training_.files()[size_t(place.source)].name());
  }
  return positions.size() > kShown ? text + " and others" : text;
}

}  // namespace cleave::app
