#include "app/run/run_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "app/adapters.h"
#include "app/run/run_facts.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/left_overs.h"
#include "core/cores.h"
#include "core/json_path.h"
#include "core/printable.h"
#include "model/config_json.h"
#include "model/layer.h"
#include "runtime/step/training_state.h"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

std::string new_run() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::string run_of(const std::string& client) {
  const json j = json::parse(client, nullptr, false);
  return j.is_object() && j.value("run", json()).is_string() ? j["run"].get<std::string>() : "";
}

}  // namespace

RunFolder::RunFolder(RunFolderOptions options, launcher::Job& job, Say say, Report report)
    : options_(std::move(options)),
      job_(job),
      say_(std::move(say)),
      report_(std::move(report)),
      run_(new_run()),
      resumed_(std::make_unique<json>()) {}

void RunFolder::require_something_to_resume() {
  const std::string& what = options_.resume;
  if (options_.dir.empty() || what == "auto" || what == "never") return;
  job_.together([&] {
    require(!job_.first() || !checkpoint::checkpoint_folders(options_.dir).empty(), Exit::checkpoint,
            "--resume {}: {} contains no checkpoint; --resume auto starts at step 0 in this case",
            in_quotes(what), options_.dir);
  });
}

void RunFolder::take(std::chrono::milliseconds deadline) {
  if (options_.dir.empty()) return;
  job_.together([&] {
    if (!job_.first() || lock_) return;
    RunLock::Options lock{.say = say_, .job_id = job_.info().job_id, .attempt = job_.info().attempt};
    lock.patience = std::min(lock.patience, deadline / 2);
    lock_.emplace(fs::path(options_.dir) / "run.lock", lock);
  });
}

bool RunFolder::resume(runtime::Engine& engine, const json& facts) {
  if (options_.dir.empty()) return false;
  std::vector<FoundCheckpoint> candidates;
  job_.together(Exit::checkpoint, [&] {
    if (!job_.first()) return;
    remove_left_overs("", -1);
    candidates = checkpoints_to_resume(options_.dir, options_.resume, say_);
  });
  for (size_t i = 0;; ++i) {
    const std::string tag = job_.from_first(i < candidates.size() ? candidates[i].tag : "");
    if (tag.empty()) return false;
    std::string client;
    const auto begin = Clock::now();
    try {
      client = engine.load_checkpoint([&] { return saved_training(tag, facts, engine.model().prefix); },
                                      {.optimizer = !options_.reset_optimizer});
    } catch (const Error& e) {
      if (e.exit() != Exit::checkpoint) throw;
      const bool pass_over = job_.first() && i + 1 < candidates.size() && is_damaged(tag);
      if (job_.from_first(pass_over ? "pass over" : "").empty()) throw;
      say_(fmt::format("warning: {} is skipped: {}", in_quotes(tag), e.what()));
      passed_over_.push_back(tag);
      continue;
    }
    saved_at_ = resumed_at_ = engine.step();
    report(monitor::Checkpointed::Kind::load, tag, engine.step(), begin);
    *resumed_ = json::parse(client, nullptr, false);
    job_.together(Exit::checkpoint, [&] {
      if (!job_.first()) return;
      compare(client, facts, engine.changed_settings());
      remember(client);
      remove_left_overs(tag, engine.step());
      if (fs::exists(checkpoint::pending(fs::path(options_.dir) / "latest")))
        checkpoint::point_at(options_.dir, "latest", tag);
    });
    const bool anew = options_.reset_optimizer || engine.optimizer_is_new();
    if (options_.reset_optimizer || options_.reset_adapters) reset_at_ = engine.step();
    say_(fmt::format("resumed from {}/{} at step {}{}", options_.dir, tag, engine.step(),
                     anew ? "; the optimizer starts from scratch" : ""));
    return true;
  }
}

std::string RunFolder::roll_back(runtime::Engine& engine, const json& facts) {
  finish(engine);
  std::vector<FoundCheckpoint> found = mine_;
  // Later steps than the resumed one may be from before the run went back to an older checkpoint.
  std::erase_if(found, [&](const FoundCheckpoint& f) {
    return f.step <= reset_at_ || (f.step > resumed_at_ && !saved_here_.contains(f.step));
  });
  std::ranges::sort(found, std::greater(), &FoundCheckpoint::step);
  for (size_t i = 0;; ++i) {
    const std::string tag = job_.from_first(i < found.size() ? found[i].tag : "");
    if (tag.empty()) return tag;
    const auto begin = Clock::now();
    try {
      const std::string client =
          engine.load_checkpoint([&] { return saved_training(tag, facts, engine.model().prefix); });
      saved_at_ = engine.step();
      report(monitor::Checkpointed::Kind::load, tag, engine.step(), begin);
      *resumed_ = json::parse(client, nullptr, false);
      return tag;
    } catch (const Error& e) {
      if (e.exit() != Exit::checkpoint) throw;
      say_(fmt::format("warning: {} is skipped: {}", in_quotes(tag), e.what()));
    }
  }
}

// Opens the checkpoint; a Python script may have saved it with other parameter names.
runtime::SavedTraining RunFolder::saved_training(const std::string& tag, const json& facts,
                                                 const std::string& prefix) const {
  runtime::SavedTraining saved(options_.dir, tag);
  model::ModelConfig config = model::read_config_json(facts.at("config").dump(), "the model");
  config.vocab = facts.at("vocab");
  saved.as_layers_of(config);
  if (!options_.reset_adapters) require_adapters(saved, facts, prefix);
  return saved;
}

void RunFolder::require_adapters(const runtime::SavedTraining& saved, const json& facts,
                                 const std::string& prefix) const {
  std::vector<std::string> weights;
  for (const auto& [name, stored] : saved.tensors("master")) weights.push_back(name);
  const std::vector<std::string> dropped = dropped_adapters(weights, lora_in(facts), prefix);
  require(dropped.empty(), Exit::checkpoint,
          "cleave.lora.targets: {} has trained adapters that this run would drop (got no target for {}{}, "
          "expected the targets of the checkpoint); restore these targets, or drop the adapters with "
          "--reset_adapters",
          saved.path().string(), dropped.empty() ? "" : dropped.front(),
          dropped.size() > 1 ? fmt::format(" and {} more", dropped.size() - 1) : "");
}

// Returns true if a checkpoint that failed to load is damaged, as opposed to one of another model
// or optimizer.
bool RunFolder::is_damaged(const std::string& tag) const {
  if (options_.resume != "auto" && options_.resume != "required") return false;
  try {
    return !checkpoint::CheckpointReader(options_.dir, tag).faults(int(usable_cores().size())).empty();
  } catch (const Error&) {
    return true;
  }
}

void RunFolder::compare(const std::string& client, const json& facts, std::vector<std::string> changes) {
  const json saved = json::parse(client, nullptr, false);
  if (!saved.is_object()) return;
  std::ranges::move(changes_of_facts(saved, facts), std::back_inserter(changes));
  // A longer training moves the end of an automatic schedule, as its user asked.
  std::erase_if(changes, [&](const std::string& c) {
    const bool follows = std::ranges::any_of(
        options_.follows_steps, [&](const std::string& path) { return c.starts_with(path + " "); });
    if (follows) say_(c);
    return follows;
  });
  require(changes.empty() || !options_.strict, Exit::checkpoint,
          "--strict: {} was trained with other settings: {}; restore them, or leave out --strict",
          options_.dir, fmt::join(changes, "; "));
  for (const std::string& c : changes) say_("warning: " + c);
}

// Continues the resumed run, which may remove its earlier checkpoints.
void RunFolder::remember(const std::string& client) {
  const std::string run = run_of(client);
  if (run.empty()) return;  // saved by versions without run names
  run_ = run;
  // Some faults are found only by reading each byte.
  const json saved = json::parse(client).value("passed_over", json::array());
  for (const json& tag : saved)
    if (tag.is_string()) passed_over_.push_back(path_from_json(tag.get<std::string>()));
  for (const std::string& tag : checkpoint::checkpoint_folders(options_.dir)) try {
      if (std::count(passed_over_.begin(), passed_over_.end(), tag) > 0) continue;
      const checkpoint::CheckpointReader reader(options_.dir, tag);
      reader.check_files();
      const runtime::Restored state = runtime::from_json(reader.state(), reader.path().string());
      if (run_of(state.client) == run_) mine_.push_back({tag, state.at.step});
    } catch (const Error&) {  // damaged: kept for inspection
    }
}

void RunFolder::remove_left_overs(const std::string& in_use, int64_t step) try {
  std::string removed;
  for (const std::string& name : checkpoint::left_overs(options_.dir, in_use, step)) {
    checkpoint::remove_checkpoint(fs::path(options_.dir) / name);
    removed += (removed.empty() ? "" : ", ") + in_quotes(name);
    std::erase_if(mine_, [&](const FoundCheckpoint& f) { return f.tag == name; });
  }
  if (!removed.empty())
    say_(fmt::format("removed leftovers of a killed job from {}: {}", options_.dir, removed));
} catch (const fs::filesystem_error& e) {
  say_(fmt::format("warning: leftovers of a killed job cannot be removed: {}", e.what()));
}

json RunFolder::with_run(json facts) const {
  facts["run"] = run_;
  for (const std::string& tag : passed_over_) facts["passed_over"].push_back(path_in_json(tag));
  return facts;
}

// Removes unfinished background saves. Returns true if there were some up to this step; a save of the
// repeated step follows anyway.
bool RunFolder::remove_unfinished(int64_t step) const try {
  bool found = false;
  for (const std::string& name : checkpoint::left_overs(options_.dir, "", -1)) {
    if (!name.starts_with(".tmp.")) continue;
    found = found || name != fmt::format(".tmp.global_step{}", step + 1);
    checkpoint::remove_checkpoint(fs::path(options_.dir) / name);
  }
  return found;
} catch (const fs::filesystem_error&) {
  return true;
}

bool RunFolder::continue_at(int64_t step, const std::string& client) {
  *resumed_ = json::parse(client, nullptr, false);
  saved_at_ = -1;
  bool unfinished = false;
  if (job_.first() && !options_.dir.empty()) {
    if (run_of(client) != run_) remember(client);
    unfinished = remove_unfinished(step);
  }
  return job_.any(unfinished);
}

void RunFolder::save(runtime::Engine& engine, const json& facts) {
  const int64_t step = engine.step();
  if (!would_save(engine)) return;
  finish(engine);
  job_.together([&] {
    if (!lock_) return;
    // A background save that begins after the removal also creates the folder; the lock is then
    // missing.
    const bool folder = fs::create_directories(options_.dir), lock = lock_->require_held();
    if (folder || lock)
      say_(fmt::format(
          "warning: {} was removed during this run; the run created it again, and earlier checkpoints {} "
          "gone",
          folder ? options_.dir : (fs::path(options_.dir) / "run.lock").string(), folder ? "is" : "may be"));
  });
  best_ = next_best_;  // the previous save has ended
  const json client = with_run(facts);
  const std::string tag = fmt::format("global_step{}", step);
  if (engine.config().checkpoint.behind())
    say_(fmt::format("saving {}/{} in the background", options_.dir, tag));
  engine.save_checkpoint(options_.dir, tag, client.dump(),
                         [this, step, begin = Clock::now(), behind = engine.config().checkpoint.behind()](
                             const checkpoint::SavedCheckpoint& saved) {
                           if (!job_.first()) return;
                           const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
                           tell(fmt::format("saved {}/{}{}", options_.dir, saved.name,
                                            behind ? fmt::format(" in {:.1f} s", seconds) : ""));
                           report(monitor::Checkpointed::Kind::save, saved.name, step, begin);
                           written(saved, step);
                         });
  saved_at_ = step;
  look(engine);
}

void RunFolder::report(monitor::Checkpointed::Kind kind, const std::string& tag, int64_t step,
                       Clock::time_point begin) const {
  if (!job_.first()) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const fs::path path = fs::path(options_.dir) / tag;
  report_({kind, path.string(), step, checkpoint::bytes_of_checkpoint(path), seconds});
}

void RunFolder::finish(runtime::Engine& engine) {
  engine.finish_save();
  look(engine);
}

bool RunFolder::look(const runtime::Engine& engine) {
  std::vector<std::string> news;
  {
    const std::lock_guard lock(mutex_);
    news.swap(news_);
  }
  for (const std::string& text : news) say_(text);
  return !engine.save_failed();
}

void RunFolder::tell(const std::string& text) {
  const std::lock_guard lock(mutex_);
  news_.push_back(text);
}

// Runs on the first rank, on the thread of a background save, which ends before the next save
// begins.
void RunFolder::written(const checkpoint::SavedCheckpoint& saved, int64_t step) {
  if (!saved.renamed && !std::exchange(in_place_, true))
    tell(fmt::format(
        "{}: the file system cannot rename folders; checkpoints are written in place, with the manifest last",
        options_.dir));
  // On file systems without renames, a checkpoint of the same step had another name.
  std::erase_if(mine_, [&](const FoundCheckpoint& f) { return f.step == step; });
  std::erase(passed_over_, saved.name);  // replaced
  mine_.push_back({saved.name, step});
  saved_here_.insert(step);
  // Also if a kill interrupted an earlier save before it wrote the file.
  for (const FoundCheckpoint& f : mine_)
    if (f.step == best_) checkpoint::point_at(options_.dir, "best", f.tag);
  let_old_ones_go(step);
}

bool RunFolder::asked_to_save() {
  // Each look costs a shared file system a message.
  const auto now = std::chrono::steady_clock::now();
  if (options_.dir.empty() || now - looked_ < std::chrono::seconds(1)) return false;
  looked_ = now;
  std::error_code error;
  return fs::remove(fs::path(options_.dir) / "save_now", error);
}

void RunFolder::let_old_ones_go(int64_t step) {
  std::vector<int64_t> steps;
  for (const FoundCheckpoint& f : mine_) steps.push_back(f.step);
  const std::vector<int64_t> old = steps_to_let_go(steps, step, best_, options_.keep);
  std::erase_if(mine_, [&](const FoundCheckpoint& f) {
    const bool goes = std::binary_search(old.begin(), old.end(), f.step);
    const fs::path folder = fs::path(options_.dir) / f.tag;
    if (goes) try {
        if (fs::exists(folder / "manifest.json")) checkpoint::remove_checkpoint(folder);
      } catch (const fs::filesystem_error& e) {
        tell(fmt::format("warning: {} cannot be removed: {}", folder.string(), e.code().message()));
      }
    return goes;
  });
}

}  // namespace cleave::app
