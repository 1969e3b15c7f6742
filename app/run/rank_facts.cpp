#include "app/run/rank_facts.h"

#include <algorithm>
#include <filesystem>

#include "checkpoint/checksum.h"
#include "core/input_file.h"
#include "data/data_sources.h"
#include "data/indexed_file.h"
#include "model/config_json.h"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;

std::string contents_of(const std::string& path, Exit exit) {
  const InputFile file(path, exit);
  return fmt::format("{} bytes with digest {:016x}", file.size(), file.digest());
}

// Returns each source, with its weight if there are several.
std::string contents_of_data(const std::string& data, const char* option) {
  std::string text;
  const std::vector<data::DataFile> sources = data::sources_of_data(data, option);
  for (const data::DataFile& source : sources) {
    text += text.empty() ? "" : ", ";
    if (sources.size() > 1) text += fmt::format("{} of ", source.weight);
    std::vector<std::string> files{source.path};
    if (data::is_indexed(source.path)) {
      const data::IndexedNames names = data::indexed_names(source.path);
      files = {names.bin, names.idx};
      if (fs::exists(names.mask)) files.push_back(names.mask);
    }
    for (size_t f = 0; f < files.size(); ++f)
      text += (f > 0 ? " and " : "") + contents_of(files[f], Exit::data);
  }
  return text;
}

std::string contents_of_eval_data(const RunOptions& o) {
  std::string text;
  for (const EvalSet& set : o.eval_sets)
    text += fmt::format("{}{}{}{}", text.empty() ? "" : "; ", set.name, set.name.empty() ? "" : "=",
                        contents_of_data(set.data, "--eval_data"));
  return text;
}

// Returns a preset's name, or the config.json and weights of a folder. The path may differ between
// ranks.
std::string contents_of_model(const ModelOptions& o) {
  if (model::is_preset(o.model)) return o.model;
  const std::string config = model::to_config_json(config_of(o, 256));  // the data may define the vocabulary
  std::string text = fmt::format("a config with checksum {:016x}", checkpoint::checksum_of(config));
  if (!fs::is_directory(o.model)) return text;
  std::vector<std::string> weights;
  for (const fs::directory_entry& entry : fs::directory_iterator(o.model))
    if (entry.path().extension() == ".safetensors") weights.push_back(entry.path().string());
  std::ranges::sort(weights);
  for (const std::string& file : weights) text += " and weights of " + contents_of(file, Exit::checkpoint);
  return text;
}

std::string place_of(const std::string& folder) {
  std::error_code none;
  return folder.empty() ? "" : fs::weakly_canonical(folder, none).string();
}

std::string word(bool given) { return given ? "given" : "not given"; }

}  // namespace

comm::Facts rank_facts(const RunOptions& o) {
  const auto number = [](const auto& value) { return fmt::format("{}", value); };
  return {{"--model", contents_of_model(o.model)},
          {"--seq_len", number(o.model.seq_len)},
          {"--document_mask", word(o.model.document_mask)},
          {"--tokenizer", o.tokenizer ? "digest " + digest_of(*o.tokenizer) : "byte"},
          {"--data", contents_of_data(o.data, "--data")},
          {"--jsonl_key", o.jsonl_key},
          {"--token_bytes", number(o.model.token_bytes)},
          {"--pack", word(o.pack)},
          {"--steps", o.epochs ? "" : number(o.steps)},
          {"--epochs", o.epochs ? number(*o.epochs) : ""},
          {"--eval_data", contents_of_eval_data(o)},
          {"--eval_interval", number(o.eval_interval)},
          {"--init", o.init},
          {"--seed", number(o.seed)},
          {"--output", place_of(o.output)},
          {"--save_interval", number(o.save_interval)},
          {"--save_minutes", number(o.save_minutes)},
          {"--keep", o.keep ? number(*o.keep) : ""},
          {"--keep_every", number(o.keep_every)},
          {"--keep_best", word(o.keep_best)},
          {"--early_stopping_patience", number(o.patience)},
          {"--early_stopping_threshold", number(o.threshold)},
          {"--resume", o.resume},
          {"--resume_check", o.resume_check},
          {"--reset_optimizer", word(o.reset_optimizer)},
          {"--reset_adapters", word(o.reset_adapters)},
          {"--export", place_of(o.export_to)},
          {"--trace", word(!o.trace.empty())},
          {"--trace_steps", number(o.trace_steps)},
          {"--ngrams", word(o.ngrams)},
          {"--strict", word(o.strict)}};
}

}  // namespace cleave::app
