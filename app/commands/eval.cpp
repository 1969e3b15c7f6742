#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include "app/add_options.h"
#include "app/commands.h"
#include "app/parse.h"
#include "app/pretrained.h"
#include "app/tokenize.h"
#include "app/work_progress.h"
#include "data/batch_loader.h"
#include "data/text/corpus.h"
#include "data/text/word_count.h"

namespace cleave::app {
namespace {

// Counts the bytes and words of the targets: every token except the first. Special tokens are not
// part of the text and end a word.
text::WordCount words_of_targets(const data::TokenFile& file, int64_t targets,
                                 const text::Tokenizer& tokenizer) {
  text::WordCount count;
  constexpr int64_t kPiece = 1 << 16;
  std::vector<int32_t> ids;
  for (int64_t at = 1; at <= targets; at += kPiece) {
    ids.resize(size_t(std::min(kPiece, targets + 1 - at)));
    file.read({at, at + int64_t(ids.size())}, ids.data());
    for (const int32_t id : ids)
      tokenizer.is_special(id) ? count.end_text() : count.add(tokenizer.bytes_of(id));
  }
  count.end_text();
  return count;
}

// Losses per byte and per word are those of a text with every token except the first as a target.
void print_losses(const runtime::Evaluation& e, const data::TokenFile& file,
                  const text::Tokenizer* tokenizer) {
  const double loss = e.loss;
  const int64_t targets = e.targets;
  std::printf("loss %.9g nats per token, perplexity %.6g, token accuracy %.6g, %lld targets\n", loss,
              std::exp(loss), *e.accuracy(), static_cast<long long>(targets));
  if (!tokenizer || targets != file.size() - 1) return;
  const text::WordCount count = words_of_targets(file, targets, *tokenizer);
  for (const auto& [unit, number] : {std::pair{"byte", count.bytes()}, {"word", count.words()}}) {
    if (number == 0) continue;
    const double each = loss * double(targets) / double(number);
    std::printf("loss %.9g nats per %s, perplexity per %s %.6g (%lld tokens, %lld %ss)\n", each, unit, unit,
                std::exp(each), static_cast<long long>(targets), static_cast<long long>(number), unit);
  }
}

struct EvalOptions {
  PretrainedOptions model;
  std::string data, key = "text";
  int token_bytes = 0;
  bool pack = false;
};

// Returns the data as the model reads them; a text is tokenized into a file once if tokens are not
// bytes.
data::TokenFile tokens_of(const EvalOptions& o, const Pretrained& model, data::TokenFile file,
                          launcher::Job& job) {
  const text::Tokenizer* tokenizer = model.tokenizer();
  const bool text = file.kind() == data::TokenFile::Kind::bytes, lines = text && text::is_json_lines(o.data);
  require(tokenizer || !lines, Exit::usage, "{}: was trained on token ids; pass --tokenizer FILE to read {}",
          o.model.dir, o.data);
  const std::string tokens =
      lines || (text && tokenizer && !model.bytes())
          ? cached_tokens(job, *tokenizer, o.data, o.key, token_cache({}), o.model.quiet)
          : o.data;
  return data::TokenFile(
      tokens, {.token_bytes = o.token_bytes, .vocab = model.vocab(), .name = tokens == o.data ? "" : o.data});
}

runtime::Evaluation evaluate(runtime::Engine& engine, data::EvalBatches& batches, bool shown) {
  WorkProgress progress(shown);
  return engine.evaluate(
      [&](int m) {
        progress.at(double(m) / double(batches.micros()),
                    [&](double) { return fmt::format("evaluated {} of {} batches", m, batches.micros()); });
        return batches.next(m);
      },
      int(batches.micros()));
}

void evaluate(const EvalOptions& o, launcher::Job& job) {
  // Reports errors before anything is started. The token width is checked when the vocabulary is known.
  data::TokenFile given(o.data, {.token_bytes = o.token_bytes > 0 ? o.token_bytes : 2});
  Pretrained model(o.model, job);
  const data::TokenFile file = tokens_of(o, model, std::move(given), job);
  data::EvalBatches batches(file, {.seq_len = model.seq_len(),
                                   .micro_batch = o.model.micro_batch,
                                   .rank = model.engine().place().data,
                                   .ranks = model.engine().mesh().data,
                                   .pack = o.pack,
                                   .document_mask = o.model.document_mask});
  const runtime::Evaluation result = evaluate(model.engine(), batches, job.first() && !o.model.quiet);
  require(result.targets > 0, Exit::data, "{}: no token has a loss; check its loss mask and documents",
          o.data);
  require(std::isfinite(result.loss), Exit::training,
          "{}: the loss on {} is not finite (got {}); use another checkpoint", o.model.dir, o.data,
          result.loss);
  if (job.first()) print_losses(result, file, model.tokenizer());
}

}  // namespace

int run_eval(const Arguments& arguments) {
  CLI::App app(
      "Prints the mean loss of a checkpoint per token, byte and word in nats, and the token accuracy, on any "
      "number of ranks. A word is a maximal run of non-space characters; token accuracy is the share of "
      "targets that the model predicts as most likely.\nExample: cleave eval runs/quickstart/checkpoints "
      "--data validation.txt",
      "eval");
  EvalOptions o;
  o.model.micro_batch = 8;
  add_options(app, o.model);
  app.add_option("--jsonl_key", o.key, "name of the text field in a .jsonl")->capture_default_str();
  app.add_option("--data", o.data, "text or token file")->required();
  add_token_bytes(app, o.token_bytes);
  app.add_flag("--pack", o.pack, "pack whole documents into samples, as cleave train --pack does");
  add_document_mask(app, o.model.document_mask);
  app.add_option("--micro_batch", o.model.micro_batch, "samples per pass and rank")
      ->capture_default_str()
      ->check(integer(1));
  if (!parse(app, arguments)) return 0;
  launcher::Job job(o.model.ranks);
  return job.run([&] {
    evaluate(o, job);
    return 0;
  });
}

}  // namespace cleave::app
