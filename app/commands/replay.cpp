#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "app/add_options.h"
#include "app/commands.h"
#include "app/parse.h"
#include "app/run/recorded_config.h"
#include "app/run/step_recorder.h"
#include "core/json.h"
#include "core/json_path.h"
#include "model/config_json.h"
#include "model/transformer.h"
#include "runtime/replay/call_player.h"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct ReplayOptions {
  std::string run;
  int64_t step = -1, rank = -1;
  bool quiet = false;
  RankOptions device;
};

// Returns the numbers of the entries "PREFIX-12" in a folder, ascending.
std::vector<int64_t> numbers_in(const fs::path& folder, std::string_view prefix) {
  std::vector<int64_t> found;
  std::error_code none;
  for (const fs::directory_entry& e : fs::directory_iterator(folder, none)) {
    const std::string name = e.path().filename().string();
    const std::string number = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
    if (!number.empty() && number.size() < 16 && number.find_first_not_of("0123456789") == std::string::npos)
      found.push_back(std::stoll(number));
  }
  std::ranges::sort(found);
  return found;
}

int64_t chosen(std::string_view option, int64_t wanted, const std::vector<int64_t>& found,
               const fs::path& folder) {
  require(wanted < 0 || std::ranges::count(found, wanted) > 0, Exit::usage,
          "{}: not recorded in {} (got {}, expected {})", option, folder.string(), wanted,
          fmt::join(found, ", "));
  return wanted < 0 ? found.back() : wanted;
}

// The step of one rank, from its record.
class RankReplay {
 public:
  RankReplay(const fs::path& folder, const launcher::Job& job)
      : folder_(folder),
        record_(runtime::read_record(folder)),
        player_(folder, job.device()),
        device_(job.device()) {}

  // Returns the facts that differ here: "products is A here and was B".
  std::string other_facts(const json& now) const {
    std::string text;
    for (const auto& [name, was] : record_.facts.at("computing").items())
      if (const json here = now.value(name, json()); here != was)
        text += fmt::format("{}{} is {} here and was {}", text.empty() ? "" : "; ", name, here.dump(),
                            was.dump());
    return text;
  }

  // Computes the step. Returns an empty text if all bits agree, otherwise the first difference.
  std::string difference() {
    config::DsConfig config = config_of_record(record_.facts.at("config"));
    config.copies_in_memory = false;  // for ranks that others replace
    const int64_t rank = counted(record_.facts.at("rank")),
                  world = counted(record_.facts.at("config").at("world"), 1);
    require(rank < world && world < (1 << 24), Exit::checkpoint,
            "{}: has a wrong rank (got {} of {}); record the step again", folder_.string(), rank, world);
    const auto ranks = comm::lone_communicator(int(rank), int(world), player_);
    player_.play(record_.setup, false);
    const std::unique_ptr<runtime::Engine> engine = engine_of(config, *ranks);
    engine->load_own_state(folder_.string(), runtime::StepRecord::kState);
    player_.play(record_.step, true);
    engine->publish_parameters();
    const std::vector<Batch> batches = read_batches();
    require(int64_t(batches.size()) == config.gradient_accumulation_steps, Exit::checkpoint,
            "{}: wrong number of micro-batches (got {}, expected {}); record the step again",
            folder_.string(), batches.size(), config.gradient_accumulation_steps);
    engine->train_batch(batches);
    engine->synchronize();
    return compared(engine->own_state_sums());
  }

  std::string size() const {
    return fmt::format("{} calls, {} state tensors", record_.step.size(), record_.after.size());
  }

 private:
  std::unique_ptr<runtime::Engine> engine_of(const config::DsConfig& config,
                                             comm::Communicator& ranks) const {
    const json& run = record_.facts.at("run");
    model::ModelConfig model = model::read_config_json(run.at("config").dump(), folder_.string());
    model.vocab = counted(run.at("vocab")), model.document_mask = run.at("document_mask");
    const int64_t positions = counted(run.at("seq_len"), 1);
    return std::make_unique<runtime::Engine>(
        config,
        [&, name = path_from_json(run.at("model").get<std::string>())](const model::Axes& axes) {
          return model::make_model(model, runtime::model_dtype(config), positions, name, axes);
        },
        ranks, runtime::EngineOptions{.seed = record_.facts.at("seed").get<uint64_t>(), .device = device_});
  }

  Tensor read_tokens(const json& batch, const char* name) {
    if (!batch.contains(name)) return {};
    const json& j = batch[name];
    std::vector<std::byte>& bytes = tokens_.emplace_back(player_.bytes(
        {counted(j.at(0)), counted(j.at(1)), std::stoull(j.at(2).get<std::string>(), nullptr, 16)}));
    return Tensor(bytes.data(), DType::int32, {int64_t(bytes.size() / sizeof(int32_t))}, MemoryKind::host);
  }

  // The record may be from another machine, and kernels trust token ids.
  void require_ids(const Tensor& tokens, bool may_be_ignored) const {
    const int64_t vocab = counted(record_.facts.at("run").at("vocab"));
    for (const int32_t id : tokens.defined() ? tokens.span<int32_t>() : std::span<int32_t>())
      require(
          (0 <= id && id < vocab) || (may_be_ignored && id == kIgnoredTarget), Exit::checkpoint,
          "{}: a token of its micro-batches is outside of the vocabulary (got {}, expected ids below {}); "
          "record the step again",
          folder_.string(), id, vocab);
  }

  std::vector<Batch> read_batches() {
    std::vector<Batch> batches;
    for (const json& j : record_.facts.at("batches")) {
      batches.push_back({.input = read_tokens(j, "input"),
                         .targets = read_tokens(j, "targets"),
                         .valid_targets = counted(j.at("valid_targets")),
                         .documents = read_tokens(j, "documents"),
                         .position = {.first_sample = counted(j.at("first_sample"))}});
      require_ids(batches.back().input, false), require_ids(batches.back().targets, true);
    }
    return batches;
  }

  std::string compared(const std::vector<runtime::StateSum>& now) const {
    const std::vector<runtime::StateSum>& was = record_.after;
    CHECK(now.size() == was.size(), "{} state tensors, the record has {}", now.size(), was.size());
    size_t first = was.size(), differing = 0;
    for (size_t i = was.size(); i-- > 0;)
      if (now[i] != was[i]) first = i, ++differing;
    const std::vector<size_t> calls = player_.differing();
    const size_t all = record_.step.size();
    if (player_.made() < all) return fmt::format("the rank ends after {} of {} calls", player_.made(), all);
    if (calls.empty() && differing == 0) return "";
    const std::string state =
        differing == 0 ? "" : fmt::format("{} of {}", was[first].kind, was[first].tensor);
    if (calls.empty())
      return fmt::format("all {} calls agree; the update differs first in {} ({} of {} state tensors)", all,
                         state, differing, was.size());
    return fmt::format(
        "the rank sends other bytes first in {} ({} of {} calls and {} of {} state tensors "
        "differ)",
        record_.step[calls.front()].describe(calls.front()), calls.size(), all, differing, was.size());
  }

  const fs::path folder_;
  const runtime::StepRecord record_;
  runtime::CallPlayer player_;
  const Device device_;
  std::vector<std::vector<std::byte>> tokens_;  // memory of the batches
};

int replay(const ReplayOptions& o, launcher::Job& job) {
  require(job.info().world == 1, Exit::usage,
          "cleave replay: computes one rank alone (got {} ranks, expected 1); run it without a launcher",
          job.info().world);
  std::error_code none;
  require(fs::is_directory(o.run, none), Exit::usage, "{}: {}; give the output folder of cleave train", o.run,
          fs::exists(o.run, none) ? "not a folder" : "does not exist");
  const fs::path root = fs::path(o.run) / "replay";
  const std::vector<int64_t> steps = numbers_in(root, "step-");
  require(!steps.empty(), Exit::usage,
          "{}: contains no recorded step; set cleave.record_steps.interval in the ds_config of the training",
          o.run);
  const int64_t step = chosen("--step", o.step, steps, root);
  const fs::path folder = root / fmt::format("step-{}", step);
  const std::vector<int64_t> recorded = numbers_in(folder, "rank-");
  require(!recorded.empty(), Exit::checkpoint, "{}: contains no rank; record the step again",
          folder.string());
  if (o.rank >= 0) chosen("--rank", o.rank, recorded, folder);
  bool differs = false;
  for (const int64_t rank : o.rank >= 0 ? std::vector{o.rank} : recorded) try {
      RankReplay of_rank(folder / fmt::format("rank-{}", rank), job);
      const std::string others = of_rank.other_facts(computing_facts(job));
      const std::string difference = of_rank.difference();
      differs = differs || !difference.empty();
      std::printf("rank %lld, step %lld: %s\n", static_cast<long long>(rank), static_cast<long long>(step),
                  difference.empty() ? ("bits agree: " + of_rank.size()).c_str() : difference.c_str());
      if (!others.empty() && (!o.quiet || !difference.empty()))
        std::printf("this computation differs: %s%s\n", others.c_str(),
                    difference.empty() ? "" : "; other bits may be correct here");
    } catch (const json::exception& e) {
      fail(Exit::checkpoint, "{}/rank-{}: a fact is missing or malformed ({}); record the step again",
           folder.string(), rank, without_number(e.what()));
    }
  return int(differs ? Exit::different : Exit::ok);
}

}  // namespace

int run_replay(const Arguments& arguments) {
  CLI::App app(
      "Computes a recorded step of a rank again, alone, and compares every byte that the rank sent and its "
      "state after\nthe step. Finds defective memory, CPUs and GPUs. Record steps with "
      "cleave.record_steps in the ds_config. Exit\ncode 8: the bits differ.\nExample: cleave replay "
      "runs/first --step 120 --rank 3",
      "replay");
  ReplayOptions o;
  app.add_option("run", o.run, "output folder of cleave train")->required();
  app.add_option("--step", o.step, "the recorded step (default: the newest)")->check(integer(1));
  app.add_option("--rank", o.rank, "the rank (default: all recorded ones, one after another)")
      ->check(integer(0));
  app.add_flag("--quiet", o.quiet, "print only the result");
  app.add_option("--device", o.device.device, "auto, cpu, cuda or cuda:INDEX")->capture_default_str();
  app.add_option("--threads", o.device.threads,
                 "CPU threads (default: OMP_NUM_THREADS, or the available cores)")
      ->check(integer(1, kMostThreads));
  if (!parse(app, arguments)) return int(Exit::ok);
  launcher::Job job(o.device);
  return job.run([&] { return replay(o, job); });
}

}  // namespace cleave::app
