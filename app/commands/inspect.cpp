#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "app/commands.h"
#include "app/commands/checkpoint_options.h"
#include "app/parse.h"
#include "core/error.h"
#include "core/json_path.h"
#include "core/printable.h"
#include "core/units.h"
#include "model/config_json.h"
#include "model/recipe.h"
#include "runtime/step/training_state.h"

namespace cleave::app {
namespace {

using nlohmann::json;

std::string text_of(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t d : shape) out += (out.empty() ? "" : " x ") + std::to_string(d);
  return out.empty() ? "1 value" : out;
}

// Parameters that are not floating point are stored as words, without their own type.
std::string shape_of(const json& tensor) {
  const bool words = tensor["kind"] == "bytes";
  return text_of(tensor["shape"]) + (words ? " words of 8 bytes" : "");
}

// Returns the entry of the saving program, or null for another program's.
json client_of(const checkpoint::CheckpointReader& reader) {
  try {
    return json::parse(runtime::from_json(reader.state(), reader.path().string()).client);
  } catch (const std::exception&) {
    return {};
  }
}

// Returns the structure of the model's layers, or nothing if the checkpoint does not contain it.
std::vector<std::string> recipe_lines(const checkpoint::CheckpointReader& reader, const json& client) {
  if (!client.is_object() || !client.contains("config")) return {};
  try {
    return model::lines_of(
        model::recipe_of(model::read_config_json(client["config"].dump(), reader.path().string())));
  } catch (const Error&) {
    return {};
  }
}

json contents_of(const checkpoint::CheckpointReader& reader) {
  const checkpoint::Manifest& m = reader.manifest();
  json tensors = json::array();
  std::set<std::string> files;
  for (const auto& [name, whole] : m.tensors) {
    std::set<std::string> in;
    for (const checkpoint::Manifest::Part& p : whole.parts) in.insert(p.file);
    files.insert(in.begin(), in.end());
    tensors.push_back({{"kind", name.first},
                       {"tensor", name.second},
                       {"shape", whole.shape},
                       {"dtype", name_of(whole.dtype)},
                       {"bytes", whole.bytes()},
                       {"records", whole.parts.size()},
                       {"shards", in}});
  }
  const json client = client_of(reader);
  return {{"path", path_in_json(reader.path().string())},
          {"bytes", m.bytes()},
          {"shards", files},
          {"state", json::parse(m.state)},
          {"client", client},
          {"layers", recipe_lines(reader, client)},
          {"tensors", tensors}};
}

void print_table(const json& contents) {
  std::printf("%s\n", path_from_json(contents["path"].get<std::string>()).c_str());
  const json& state = contents["state"];
  const json& client = contents["client"];
  if (state.contains("step")) std::printf("  step %s", state["step"].dump().c_str());
  if (client.is_object())
    for (const char* fact : {"model", "optimizer", "seq_len", "seed", "run"})
      if (client.contains(fact))
        std::printf(
            ", %s %s", fact,
            printable(client[fact].is_string() ? client[fact].get<std::string>() : client[fact].dump())
                .c_str());
  std::printf("\n");
  for (const json& line : contents["layers"])
    std::printf("  %s\n", printable(line.get<std::string>()).c_str());
  std::map<std::string, std::pair<int64_t, int64_t>> kinds;  // tensors and bytes
  size_t wide = 6;
  for (const json& t : contents["tensors"]) {
    auto& [tensors, bytes] = kinds[printable(t["kind"].get<std::string>())];
    ++tensors, bytes += t["bytes"].get<int64_t>();
    wide = std::max(wide, printable(t["tensor"].get<std::string>()).size());
  }
  std::printf("  %s in %zu shard%s\n", format_bytes(contents["bytes"]).c_str(), contents["shards"].size(),
              contents["shards"].size() == 1 ? "" : "s");
  for (const auto& [kind, sum] : kinds)
    std::printf("  %-12s %5lld tensors  %s\n", kind.c_str(), static_cast<long long>(sum.first),
                format_bytes(sum.second).c_str());
  std::printf("\n%-12s %-*s %-20s %12s %8s\n", "kind", int(wide), "tensor", "shape", "bytes", "records");
  for (const json& t : contents["tensors"])
    std::printf("%-12s %-*s %-20s %12lld %8lld\n", printable(t["kind"].get<std::string>()).c_str(), int(wide),
                printable(t["tensor"].get<std::string>()).c_str(), shape_of(t).c_str(),
                t["bytes"].get<long long>(), t["records"].get<long long>());
}

}  // namespace

int run_inspect(const Arguments& arguments) {
  CLI::App app(
      "Lists step, tensors and shards of a checkpoint.\nExample: cleave inspect runs/quickstart/checkpoints",
      "inspect");
  CheckpointOptions o;
  bool as_json = false;
  add_options(app, o);
  app.add_flag("--json", as_json, "print JSON");
  if (!parse(app, arguments)) return 0;
  const checkpoint::CheckpointReader reader = open(o);
  reader.check_files();
  const json contents = contents_of(reader);
  if (as_json)
    std::printf("%s\n", contents.dump(1).c_str());
  else
    print_table(contents);
  return 0;
}

}  // namespace cleave::app
