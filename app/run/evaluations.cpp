#include "app/run/evaluations.h"

#include "data/ngram.h"

namespace cleave::app {
namespace {

// Compares a validation loss with those of n-gram models.
std::vector<std::string> ngram_lines(const data::DataSources& data, const data::DataSources& eval_data,
                                     const std::string& model, double validation_loss) {
  if (!data.bytes() || data.blended() || !eval_data.bytes() || eval_data.blended())
    return {"--ngrams: supports a single text only"};
  const std::string train = InputFile(data.files()[0].path(), Exit::data).text(),
                    validation = InputFile(eval_data.files()[0].path(), Exit::data).text();
  const std::vector<double> losses = data::ngram_losses(data::bytes_of(train), data::bytes_of(validation));
  std::vector<std::string> lines{"validation loss in nats per byte, on the same split:"};
  for (size_t n = 0; n < losses.size(); ++n)
    lines.push_back(fmt::format("  {}-gram   {:.4f}{}", n + 1, losses[n],
                                validation_loss < losses[n] ? "   beaten" : ""));
  lines.push_back(fmt::format("  {:<8} {:.4f}", model, validation_loss));
  return lines;
}

// Batches of a rank that replaces unreadable data by rows without targets, so that all ranks
// complete an evaluation.
class ReadableBatches {
 public:
  ReadableBatches(const RunParts& run, size_t set, int64_t rows)
      : batches_(run.data.eval_batches(set, run.engine.config(), run.place)),
        input_(size_t(rows), 0),
        targets_(size_t(rows), kIgnoredTarget),
        documents_(size_t(run.wanted.model.document_mask ? rows : 0), 0) {}

  Batch next(int micro) {
    try {
      return batches_.next(micro);
    } catch (const Error&) {
      failure = std::current_exception();
      Batch nothing = batch_of(input_, targets_);
      nothing.documents =
          Tensor(documents_.data(), DType::int32, {int64_t(documents_.size())}, MemoryKind::host);
      return nothing;
    }
  }
  int micros() const { return int(batches_.micros()); }

  std::exception_ptr failure;  // the last one

 private:
  data::EvalBatches batches_;
  std::vector<int32_t> input_, targets_, documents_;
};

}  // namespace

// Returns nothing if a stop was requested meanwhile.
std::optional<runtime::Evaluation> Evaluations::evaluate(size_t set) {
  const int64_t rows = run_.engine.config().train_micro_batch_size_per_gpu * run_.wanted.model.seq_len;
  ReadableBatches batches(run_, set, rows);
  const runtime::Evaluation result =
      run_.engine.evaluate([&](int micro) { return batches.next(micro); }, batches.micros(),
                           [this] { return ending_.vote_to_stop(); });
  try {
    run_.data.evaluation()[set].require_unchanged();
  } catch (const Error&) {
    batches.failure = std::current_exception();
  }
  if (run_.job.any(bool(batches.failure))) ending_.save_and_throw(batches.failure);
  if (ending_.stopped()) {
    run_.watch.say(
        fmt::format("stop requested: the evaluation after step {} is not finished", run_.engine.step()));
    return {};
  }
  require(result.targets > 0, Exit::data,
          "--eval_data {}: no token has a loss; check its loss mask and documents",
          run_.wanted.named(run_.wanted.eval_sets[set].data));
  return result;
}

bool Evaluations::evaluate() {
  for (size_t set = 0; set < run_.data.evaluation().size(); ++set) {
    const std::optional<runtime::Evaluation> result = evaluate(set);
    if (!result) return false;
    if (set == 0) loss_ = result->loss;
    run_.watch.report().evaluation(run_.engine.step(), run_.wanted.eval_sets[set].name, *result);
  }
  evaluated_at_ = run_.engine.step();
  run_.watch.settle();
  return true;
}

void Evaluations::say_ngrams() const {
  if (!run_.wanted.ngrams || !run_.job.first()) return;
  for (const std::string& line :
       ngram_lines(run_.data.training(), run_.data.evaluation()[0], run_.wanted.model.model, loss_))
    run_.watch.say(line);
}

}  // namespace cleave::app
