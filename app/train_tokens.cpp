#include "app/train_tokens.h"

#include <algorithm>

#include "app/raw_bytes.h"
#include "app/tokenize.h"
#include "data/data_sources.h"
#include "text/corpus.h"

namespace cleave {

bool tokenize_inputs(TrainOptions& o, Job& job, const DsConfig& config) {
  const auto files_of = [&](const std::string* input) {
    return files_of_data(*input, input == &o.data ? "--data" : "--eval_data");
  };
  std::vector<std::string*> inputs{&o.data};
  for (EvalSet& set : o.eval_sets) inputs.push_back(&set.data);
  bool text = false;
  for (const std::string* input : inputs) {
    const std::vector<std::string> files = files_of(input);
    text = text || std::any_of(files.begin(), files.end(), is_text);
  }
  if (!text && o.model.tokenizer.empty()) return false;
  o.tokenizer = tokenizer_of(o.model);
  if (!o.tokenizer) return false;
  require_tokenizer_fits(*o.tokenizer, config_of(o.model, o.tokenizer->vocab_size()).vocab,
                         "--model " + o.model.model);
  if (!text) return false;
  for (const std::string* input : inputs) {
    const std::vector<std::string> files = files_of(input);
    require(
        files == std::vector{*input} || std::none_of(files.begin(), files.end(), is_text), Exit::usage,
        "{} blends texts, which have to be token files first: cleave data tokenize TEXT BIN --tokenizer {}",
        input == &o.data ? "--data" : "--eval_data", o.tokenizer->path());
  }
  job.connect(config);
  const std::string folder = token_cache_folder(o.output);
  for (std::string* input : inputs) {
    if (files_of(input) != std::vector{*input} || !is_text(*input)) continue;
    o.texts.push_back(*input);
    if (job.first() && !is_json_lines(*input)) warn_of_raw_bytes({*input});
    *input = cached_tokens(job, *o.tokenizer, *input, o.jsonl_key, folder, o.quiet);
  }
  return true;
}

}  // namespace cleave
