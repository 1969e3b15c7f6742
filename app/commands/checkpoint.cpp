#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "app/commands.h"
#include "app/parse.h"
#include "app/published_model.h"
#include "app/work_progress.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/digest.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/units.h"
#include "model/config_json.h"
#include "model/presets.h"
#include "model/recipe.h"
#include "runtime/training_state.h"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Options {
  std::string dir, tag;
  int threads = 0;
  bool as_json = false, quiet = false;
  std::string dtype = "fp32";
};

// A folder of checkpoints, or one checkpoint itself.
checkpoint::CheckpointReader open(const Options& o) {
  fs::path dir = fs::path(o.dir).lexically_normal();
  if (!dir.has_filename()) dir = dir.parent_path();
  std::error_code error;
  if (!o.tag.empty() || !fs::exists(dir / "manifest.json", error))
    return {dir, o.tag.empty() ? "latest" : o.tag};
  return {dir.has_parent_path() ? dir.parent_path() : ".", dir.filename().string()};
}

int threads_of(const Options& o) { return threads_of_process(o.threads).threads; }

std::string text_of(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t d : shape) out += (out.empty() ? "" : " x ") + std::to_string(d);
  return out.empty() ? "1 value" : out;
}

// What the saver stored, or null where another program wrote it.
json client_of(const checkpoint::CheckpointReader& reader) {
  try {
    return json::parse(runtime::from_json(reader.state(), reader.path().string()).client);
  } catch (const std::exception&) {
    return {};
  }
}

// What the model's layers are made of, or nothing where the checkpoint does not say.
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
                       {"dtype", "fp32"},
                       {"bytes", checkpoint::numel_of(whole.shape) * 4},
                       {"records", whole.parts.size()},
                       {"shards", in}});
  }
  const json client = client_of(reader);
  return {{"path", reader.path().string()},
          {"bytes", m.bytes()},
          {"shards", files},
          {"state", json::parse(m.state)},
          {"client", client},
          {"layers", recipe_lines(reader, client)},
          {"tensors", tensors}};
}

void print_table(const json& contents) {
  std::printf("%s\n", contents["path"].get<std::string>().c_str());
  const json& state = contents["state"];
  const json& client = contents["client"];
  if (state.contains("step")) std::printf("  step %s", state["step"].dump().c_str());
  if (client.is_object())
    for (const char* fact : {"model", "optimizer", "seq_len", "seed", "run"})
      if (client.contains(fact))
        std::printf(
            ", %s %s", fact,
            client[fact].is_string() ? client[fact].get<std::string>().c_str() : client[fact].dump().c_str());
  std::printf("\n");
  for (const json& line : contents["layers"]) std::printf("  %s\n", line.get<std::string>().c_str());
  std::map<std::string, std::pair<int64_t, int64_t>> kinds;  // tensors and bytes
  size_t wide = 6;
  for (const json& t : contents["tensors"]) {
    auto& [tensors, bytes] = kinds[t["kind"]];
    ++tensors, bytes += t["bytes"].get<int64_t>();
    wide = std::max(wide, t["tensor"].get<std::string>().size());
  }
  std::printf("  %s in %zu shard%s\n", format_bytes(contents["bytes"]).c_str(), contents["shards"].size(),
              contents["shards"].size() == 1 ? "" : "s");
  for (const auto& [kind, sum] : kinds)
    std::printf("  %-12s %5lld tensors  %s\n", kind.c_str(), static_cast<long long>(sum.first),
                format_bytes(sum.second).c_str());
  std::printf("\n%-12s %-*s %-20s %12s %8s\n", "kind", int(wide), "tensor", "shape", "bytes", "records");
  for (const json& t : contents["tensors"])
    std::printf("%-12s %-*s %-20s %12lld %8lld\n", t["kind"].get<std::string>().c_str(), int(wide),
                t["tensor"].get<std::string>().c_str(), text_of(t["shape"]).c_str(),
                t["bytes"].get<long long>(), t["records"].get<long long>());
}

// The options that all three commands have.
void add_options(CLI::App& app, Options& o) {
  app.add_option("dir", o.dir, "folder of checkpoints, or one of them")->required();
  app.add_option("--tag", o.tag, "which one (default: the one that `latest` names)");
}

void add_threads(CLI::App& app, Options& o) {
  app.add_option("--threads", o.threads, "threads that read (0: one a core)")
      ->capture_default_str()
      ->check(integer(0, kMostThreads));
  app.add_flag("--quiet", o.quiet, "no progress");
}

}  // namespace

int run_inspect(const Arguments& arguments) {
  CLI::App app(
      "What a checkpoint holds: its step, its tensors, and which shards have them.\n"
      "Example: cleave inspect runs/quickstart/checkpoints",
      "inspect");
  Options o;
  add_options(app, o);
  app.add_flag("--json", o.as_json, "as JSON, for scripts");
  if (!parse(app, arguments)) return 0;
  const checkpoint::CheckpointReader reader = open(o);
  reader.check_files();
  const json contents = contents_of(reader);
  if (o.as_json)
    std::printf("%s\n", contents.dump(1).c_str());
  else
    print_table(contents);
  return 0;
}

namespace {

// Every fault of the checkpoint is a line. Error(checkpoint) where there are any.
void verify(const checkpoint::CheckpointReader& reader, const Options& o) {
  std::vector<std::string> faults;
  {
    WorkProgress progress(!o.quiet);
    faults = reader.faults(threads_of(o), [&](int64_t done, int64_t all) {
      progress.at(double(done) / double(std::max<int64_t>(all, 1)), [&](double) {
        return fmt::format("verified {} of {}", format_bytes(done), format_bytes(all));
      });
    });
  }
  for (const std::string& fault : faults) std::printf("%s\n", fault.c_str());
  require(faults.empty(), Exit::checkpoint, "{} has {} fault{}", reader.path().string(), faults.size(),
          faults.size() == 1 ? "" : "s");
  std::printf("%s is whole: %zu tensors, every element once, %s, all checksums match\n",
              reader.path().c_str(), reader.manifest().tensors.size(),
              format_bytes(reader.manifest().bytes()).c_str());
}

void verify_all(const Options& o) {
  const std::vector<std::string> names = checkpoint::checkpoint_folders(o.dir);
  require(!names.empty(), Exit::checkpoint, "{} has no checkpoints", o.dir);
  size_t faulty = 0;
  for (const std::string& name : names) try {
      verify(checkpoint::CheckpointReader(o.dir, name), o);
    } catch (const Error& e) {
      if (e.exit() != Exit::checkpoint) throw;
      std::printf("%s\n", e.what());
      ++faulty;
    }
  require(faulty == 0, Exit::checkpoint, "{} of the {} checkpoints in {} have faults", faulty, names.size(),
          o.dir);
}

}  // namespace

int run_verify(const Arguments& arguments) {
  CLI::App app(
      "Reads every byte of a checkpoint and compares it with the checksums; each fault is a line. Exit code "
      "4: there are any.\n"
      "Example: cleave verify runs/quickstart/checkpoints",
      "verify");
  Options o;
  bool all = false;
  add_options(app, o);
  add_threads(app, o);
  app.add_flag("--all", all, "every checkpoint of the folder, damaged ones among them")->excludes("--tag");
  if (!parse(app, arguments)) return 0;
  if (all)
    verify_all(o);
  else
    verify(open(o), o);
  return 0;
}

namespace {

// Those of its import: of the parameters under their names here, as masters.
std::map<std::string, std::string> digests_of_published(const Options& o, DType as) {
  const PublishedModel model(o.dir, published_config(o.dir));
  model.reader().require_tied();
  std::vector<checkpoint::NamedShape> tensors;
  for (const checkpoint::WeightName& w : model.names().tensors)
    tensors.push_back({"master", w.tensor, w.shape});
  return checkpoint::digests(
      tensors, [&](const checkpoint::Record& r) { model.reader().read(r); }, threads_of(o), as);
}

}  // namespace

int run_digest(const Arguments& arguments) {
  CLI::App app(
      "Hashes of a checkpoint's weights and of its optimizer state, which are the same for every number of "
      "ranks, stage, offload and layout; or of the weights of a published model, which are those of its "
      "import.\n"
      "Example: cleave digest runs/quickstart/checkpoints",
      "digest");
  Options o;
  add_options(app, o);
  add_threads(app, o);
  app.add_option("--dtype", o.dtype, "round the values to this type first, as an export does")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  if (!parse(app, arguments)) return 0;
  const DType as = o.dtype == "bf16" ? DType::bf16 : o.dtype == "fp16" ? DType::fp16 : DType::fp32;
  model::require_one_meaning(o.dir);
  auto all = is_published_model(o.dir) ? digests_of_published(o, as)
                                       : checkpoint::digests(open(o), threads_of(o), as);
  if (const auto weights = all.extract("master")) std::printf("%s  weights\n", weights.mapped().c_str());
  for (const auto& [kind, digest] : all) std::printf("%s  %s\n", digest.c_str(), kind.c_str());
  return 0;
}

}  // namespace cleave::app
