#include "app/run/run_facts.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/adapters.h"
#include "checkpoint/checksum.h"
#include "core/json_path.h"
#include "core/printable.h"
#include "model/config_json.h"

namespace cleave::app {
namespace {

using nlohmann::json;

// Identifies a corpus without reading all of it: size, first and last MiB.
void add_ends(checkpoint::Checksum& checksum, const data::TokenFile& data) {
  const InputFile file(data.path(), Exit::data);
  const int64_t some = std::min<int64_t>(file.size(), 1 << 20);
  std::vector<std::byte> bytes(static_cast<size_t>(some));
  for (const int64_t at : {int64_t{0}, file.size() - some}) {
    file.read(at, bytes);
    checksum.add(bytes.data(), some);
  }
}

// For a blend, covers all of its files.
json facts_of(const data::DataSources& data) {
  checkpoint::Checksum checksum;
  std::string names;
  for (const data::TokenFile& file : data.files()) {
    add_ends(checksum, file);
    names += (names.empty() ? "" : " ") + std::filesystem::path(file.name()).filename().string();
  }
  json facts{{"name", path_in_json(names)},
             {"tokens", data.tokens()},
             {"kind", data.blended() ? "blend" : data::name_of(data.files()[0].kind())},
             {"ends_xxh3", fmt::format("{:016x}", checksum.value())}};
  if (data.blended()) facts["shares"] = data.shares();
  return facts;
}

std::string shown(const json& value) {
  constexpr size_t kMost = 200;  // also for a list of names
  return in_quotes(value.is_string() ? value.get<std::string>() : value.dump(), kMost);
}

// Adds the changed members of objects.
void add_changes(const std::string& name, const json& saved, const json& now,
                 std::vector<std::string>& changes) {
  if (saved == now) return;
  if (!saved.is_object() || !now.is_object())
    return changes.push_back(
        fmt::format("{} is {} now and was {} in the checkpoint", name, shown(now), shown(saved)));
  json all = saved;
  all.update(now);
  for (const auto& [key, value] : all.items())
    add_changes(name + "." + key, saved.value(key, json()), now.value(key, json()), changes);
}

// Data are equal under another name.
std::string change_of_data(const json& saved, const json& now) {
  for (const char* key : {"tokens", "kind", "ends_xxh3"})
    if (saved.value(key, json()) != now.value(key, json()))
      return fmt::format(
          "--data: the content changed ({} with {} tokens now, {} with {} tokens in the checkpoint)",
          shown(now["name"]), now["tokens"].dump(), shown(saved.value("name", json())),
          shown(saved.value("tokens", json())));
  if (saved.value("shares", json()) != now.value("shares", json()))
    return fmt::format("--data: the weights of the sources changed ({} now, {} in the checkpoint)",
                       shown(now.value("shares", json())), shown(saved.value("shares", json())));
  return {};
}

}  // namespace

json run_facts(const RunOptions& options, const model::ModelConfig& model, const config::DsConfig& config,
               const data::DataSources& data) {
  const bool bytes = options.tokenizer && options.tokenizer->path() == "byte";
  json facts = {{"model", path_in_json(options.model.model)},
                {"config", json::parse(model::to_config_json(model))},
                {"vocab", model.vocab},
                {"seq_len", options.model.seq_len},
                {"tokenizer", data.bytes() || bytes ? "byte"
                              : options.tokenizer   ? "file"
                                                    : "ids"},
                {"pack", options.pack},
                {"document_mask", options.model.document_mask},
                {"seed", options.seed},
                {"batch", config.train_batch_size},
                {"optimizer", name_of(config.optimizer.type)},
                {"lora", facts_of(config.lora)},
                {"data", facts_of(data)}};
  if (options.tokenizer && !bytes) {
    facts["tokenizer_path"] = path_in_json(std::filesystem::absolute(options.tokenizer->path()).string());
    facts["tokenizer_digest"] = digest_of(*options.tokenizer);
  }
  return facts;
}

std::vector<std::string> changes_of_facts(const json& saved, const json& now) {
  std::vector<std::string> changes;
  constexpr std::pair<const char*, const char*> kPlain[] = {{"lora", "cleave.lora"},
                                                            {"seed", "--seed"},
                                                            {"seq_len", "--seq_len"},
                                                            {"pack", "--pack"},
                                                            {"document_mask", "--document_mask"}};
  const bool trained = !saved.contains("imported");  // the other facts of an import have no meaning
  for (const auto& [key, name] : kPlain)
    if (trained && saved.contains(key)) add_changes(name, saved[key], now[key], changes);
  if (saved.value("tokenizer_digest", json()) != now.value("tokenizer_digest", json()) &&
      saved.contains("tokenizer_digest") && now.contains("tokenizer_digest"))
    changes.push_back(fmt::format("--tokenizer: the ids changed ({} now, {} in the checkpoint)",
                                  shown(now["tokenizer_path"]),
                                  shown(saved.value("tokenizer_path", json()))));
  if (saved.contains("data") && saved["data"].is_object())
    if (std::string change = change_of_data(saved["data"], now["data"]); !change.empty())
      changes.push_back(change);
  if (!saved.contains("config")) return changes;
  for (const json& change : json::diff(saved["config"], now["config"])) {
    const json::json_pointer at(change["path"].get<std::string>());
    auto value = [&](const json& config) { return config.contains(at) ? shown(config[at]) : "nothing"; };
    changes.push_back(fmt::format("{} of the model differs from the checkpoint: {} now, {} in the checkpoint",
                                  printable(at.to_string().substr(1)), value(now["config"]),
                                  value(saved["config"])));
  }
  return changes;
}

}  // namespace cleave::app
