#include "app/run/start_weights.h"

#include "app/tokenizer_files.h"

namespace cleave::app {

void StartWeights::find() {
  if (published_ || wanted_.init == "random") return;
  if (const auto folder = folder_of_weights(wanted_.model.model); !folder.empty())
    published_.emplace(folder, model_);
}

std::string StartWeights::load(runtime::Engine& engine, launcher::Job& job) {
  job.together([&] {
    find();
    const bool keeps = published_ || (wanted_.tokenizer && wanted_.tokenizer->path() != "byte");
    if (job.first() && keeps && !wanted_.output.empty())
      require_own_tokenizer(wanted_.output, wanted_.tokenizer.get());
  });
  if (!published_) return describe_random(wanted_.model.model, wanted_.seed);
  job.together([&] {
    if (!job.first()) return;
    published_->reader().require_tied();
    if (!wanted_.output.empty()) keep_model_files(published_->folder(), wanted_.output);
  });
  engine.load_weights([&](const checkpoint::Record& r) {  // adapters keep their initial values
    if (published_->reader().has(r.tensor)) published_->reader().read(r);
  });
  return published_->describe();
}

}  // namespace cleave::app
