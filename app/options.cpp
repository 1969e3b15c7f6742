#include "app/options.h"

#include <filesystem>

#include "core/environment.h"
#include "core/error.h"
#include "core/units.h"
#include "data/token_file.h"

namespace cleave::app {

std::unique_ptr<text::Tokenizer> tokenizer_of(const ModelOptions& o) {
  std::string path = o.tokenizer;
  if (path.empty() && std::filesystem::is_directory(o.model)) path = text::tokenizer_file_in(o.model);
  return path.empty() || path == "byte" ? nullptr : text::open_tokenizer(path);
}

void require_tokenizer_fits(const text::Tokenizer& tokenizer, int64_t vocab, const std::string& what) {
  require(tokenizer.vocab_size() <= vocab, Exit::usage,
          "--tokenizer: {} does not fit the model (got {} ids, but {} has a vocabulary of {}); give the "
          "tokenizer of the model, or a model with a larger vocabulary",
          tokenizer.path(), tokenizer.vocab_size(), what, vocab);
}

std::string digest_of(const text::Tokenizer& tokenizer) { return fmt::format("{:016x}", tokenizer.digest()); }

model::ModelConfig config_of(const ModelOptions& o, int64_t data_vocab) {
  model::ModelConfig config = model::find_model(o.model);
  config.document_mask = o.document_mask;
  if (config.vocab > 0) return config;
  require(data_vocab < data::TokenFile::kUnknownVocab, Exit::usage,
          "--model {}: needs a vocabulary size, because these 32-bit ids do not state theirs; give a "
          "config.json with a vocab_size",
          o.model);
  config.vocab = data_vocab;
  return config;
}

data::TokenFile::Options reading_of(const ModelOptions& o) {
  return {.token_bytes = o.token_bytes, .bound = model::find_model(o.model).vocab};
}

MemoryLimits memory_limits(const RankOptions& o) {
  auto limit = [](const std::string& option, const char* name, const char* variable) {
    if (!option.empty()) return parse_bytes(option, name);
    const std::string fallback = environment_value(variable);
    return fallback.empty() ? MemoryLimits::kNone : parse_bytes(fallback, variable);
  };
  return {limit(o.device_memory, "--device_memory", "CLEAVE_DEVICE_MEMORY"),
          limit(o.host_memory, "--host_memory", "CLEAVE_HOST_MEMORY")};
}

}  // namespace cleave::app
