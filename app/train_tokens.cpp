#include "app/train_tokens.h"

#include <algorithm>

#include "app/raw_bytes.h"
#include "app/tokenize.h"
#include "data/data_sources.h"
#include "text/corpus.h"

namespace cleave {

bool tokenize_inputs(TrainOptions& o, Job& job, const DsConfig& config) {
  const std::vector<std::string> sources = files_of_data(o.data);
  const bool blended = sources != std::vector{o.data};
  const bool text = std::any_of(sources.begin(), sources.end(), is_text) || is_text(o.eval_data);
  if (!text && o.model.tokenizer.empty()) return false;
  o.tokenizer = tokenizer_of(o.model);
  if (!o.tokenizer) return false;
  require_tokenizer_fits(*o.tokenizer, config_of(o.model, o.tokenizer->vocab_size()).vocab,
                         "--model " + o.model.model);
  if (!text) return false;
  require(
      !blended || std::none_of(sources.begin(), sources.end(), is_text), Exit::usage,
      "--data blends texts, which have to be token files first: cleave data tokenize TEXT BIN --tokenizer {}",
      o.tokenizer->path());
  job.connect(config);
  const std::string folder = token_cache_folder(o.output);
  for (std::string* input : {&o.data, &o.eval_data}) {
    if ((blended && input == &o.data) || !is_text(*input)) continue;
    o.texts.push_back(*input);
    if (job.first() && !is_json_lines(*input)) warn_of_raw_bytes({*input});
    *input = cached_tokens(job, *o.tokenizer, *input, o.jsonl_key, folder, o.quiet);
  }
  return true;
}

}  // namespace cleave
