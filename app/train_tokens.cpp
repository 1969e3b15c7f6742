#include "app/train_tokens.h"

#include "app/raw_bytes.h"
#include "app/tokenize.h"
#include "text/corpus.h"

namespace cleave {

bool tokenize_inputs(TrainOptions& o, Job& job, const DsConfig& config) {
  const bool text = is_text(o.data) || is_text(o.eval_data);
  if (!text && o.model.tokenizer.empty()) return false;
  o.tokenizer = tokenizer_of(o.model);
  if (!o.tokenizer) return false;
  require_tokenizer_fits(*o.tokenizer, config_of(o.model, o.tokenizer->vocab_size()).vocab,
                         "--model " + o.model.model);
  if (!text) return false;
  job.connect(config);
  const std::string folder = token_cache_folder(o.output);
  for (std::string* input : {&o.data, &o.eval_data}) {
    if (!is_text(*input)) continue;
    o.texts.push_back(*input);
    if (job.first() && !is_json_lines(*input)) warn_of_raw_bytes({*input});
    *input = cached_tokens(job, *o.tokenizer, *input, o.jsonl_key, folder, o.quiet);
  }
  return true;
}

}  // namespace cleave
