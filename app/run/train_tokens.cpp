#include "app/run/train_tokens.h"

#include <algorithm>

#include "app/tokenize.h"
#include "data/data_sources.h"
#include "data/text/corpus.h"

namespace cleave::app {

bool tokenize_inputs(RunOptions& o, launcher::Job& job, const std::function<void()>& connect) {
  const auto option_of = [&](const std::string* input) {
    return input == &o.data ? "--data" : "--eval_data";
  };
  std::vector<std::string*> inputs{&o.data};
  for (EvalSet& set : o.eval_sets) inputs.push_back(&set.data);
  bool text = false, lines = false;
  for (const std::string* input : inputs)
    for (const std::string& file : data::files_of_data(*input, option_of(input)))
      if (is_text(file)) text = true, lines = lines || text::is_json_lines(file);
  if (!text && o.model.tokenizer.empty()) return false;
  o.tokenizer = tokenizer_of(o.model);
  const bool bytes = !o.tokenizer;  // then a text is its own token file; JSON lines are not
  if (bytes && !lines) return false;
  if (bytes) o.tokenizer = text::open_tokenizer("byte");
  require_tokenizer_fits(*o.tokenizer, config_of(o.model, o.tokenizer->vocab_size()).vocab,
                         "--model " + o.model.model);
  if (!text) return false;
  const auto to_be_made = [&](const std::string& file) {
    return is_text(file) && (!bytes || text::is_json_lines(file));
  };
  connect();
  const TokenCache cache = token_cache(o.output);
  for (std::string* input : inputs) {
    std::vector<data::DataFile> sources = data::sources_of_data(*input, option_of(input));
    for (data::DataFile& source : sources) {
      if (!to_be_made(source.path)) continue;
      const std::string made = cached_tokens(job, *o.tokenizer, source.path, o.jsonl_key, cache, o.quiet);
      o.texts[made] = source.path;
      source.path = made;
    }
    const std::string made = data::as_data(sources);
    if (made != *input && sources.size() > 1) o.texts[made] = *input;
    *input = made;
  }
  return true;
}

}  // namespace cleave::app
