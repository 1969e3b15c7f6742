#include "app/train_tokens.h"

#include <algorithm>

#include "app/raw_bytes.h"
#include "app/tokenize.h"
#include "data/data_sources.h"
#include "text/corpus.h"

namespace cleave {

bool tokenize_inputs(TrainOptions& o, Job& job, const DsConfig& config) {
  const auto option_of = [&](const std::string* input) {
    return input == &o.data ? "--data" : "--eval_data";
  };
  std::vector<std::string*> inputs{&o.data};
  for (EvalSet& set : o.eval_sets) inputs.push_back(&set.data);
  bool text = false;
  for (const std::string* input : inputs) {
    const std::vector<std::string> files = files_of_data(*input, option_of(input));
    text = text || std::any_of(files.begin(), files.end(), is_text);
  }
  if (!text && o.model.tokenizer.empty()) return false;
  o.tokenizer = tokenizer_of(o.model);
  if (!o.tokenizer) return false;
  require_tokenizer_fits(*o.tokenizer, config_of(o.model, o.tokenizer->vocab_size()).vocab,
                         "--model " + o.model.model);
  if (!text) return false;
  job.connect(config);
  Job::catch_signals();
  const std::string folder = token_cache_folder(o.output);
  for (std::string* input : inputs) {
    std::vector<DataFile> sources = sources_of_data(*input, option_of(input));
    for (DataFile& source : sources) {
      if (!is_text(source.path)) continue;
      o.texts.push_back(source.path);
      if (job.first() && !is_json_lines(source.path)) warn_of_raw_bytes({source.path});
      source.path = cached_tokens(job, *o.tokenizer, source.path, o.jsonl_key, folder, o.quiet);
    }
    *input = as_data(sources);
  }
  return true;
}

}  // namespace cleave
