#include "app/run/resume_candidates.h"

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "checkpoint/checkpoint.h"
#include "core/printable.h"
#include "runtime/step/training_state.h"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;
using Say = std::function<void(const std::string&)>;

// A user may have set `latest` to an older checkpoint, which comes first; a kill may have left
// `latest` at an older checkpoint than the newest.
void put_first(std::vector<FoundCheckpoint>& found, size_t at, const std::string& folder, const Say& say) {
  std::string newer;
  for (size_t i = 0; i < at; ++i) newer += (newer.empty() ? "" : ", ") + in_quotes(found[i].tag);
  const std::string& pointed = found[at].tag;
  if (found[at].step < found[0].step)
    say(fmt::format(
        "warning: 'latest' names {}, so the resume skips newer checkpoints: {}; --resume NAME selects one",
        in_quotes(pointed), newer));
  else if (fs::exists(checkpoint::pending(fs::path(folder) / "latest")))
    say(fmt::format(
        "warning: a job was killed before 'latest' named its newest checkpoint, {}; the resume uses it",
        in_quotes(pointed)));
  std::rotate(found.begin(), found.begin() + ptrdiff_t(at), found.begin() + ptrdiff_t(at) + 1);
}

// Returns the checkpoints with complete files, newest first; adds a sentence to `damaged` for each
// of the others.
std::vector<FoundCheckpoint> whole_checkpoints(const std::string& folder, std::vector<std::string>& damaged) {
  std::vector<FoundCheckpoint> found;
  for (const std::string& tag : checkpoint::checkpoint_folders(folder)) try {
      const checkpoint::CheckpointReader reader(folder, tag);
      reader.check_files();
      const runtime::Restored state = runtime::from_json(reader.state(), reader.path().string());
      found.push_back({tag, state.at.step});
    } catch (const Error& e) {
      damaged.push_back(fmt::format("{} is skipped: {}", in_quotes(tag), e.what()));
    }
  // ".old.<name>" comes after its replacement.
  std::sort(found.begin(), found.end(),
            [](auto& a, auto& b) { return std::tie(a.step, a.tag) > std::tie(b.step, b.tag); });
  return found;
}

}  // namespace

std::vector<FoundCheckpoint> checkpoints_to_resume(const std::string& folder, const std::string& resume,
                                                   const Say& say) {
  if (resume == "never") {
    if (!checkpoint::checkpoint_folders(folder).empty())
      say(fmt::format(
          "warning: {} contains checkpoints of another run; this run replaces those with the same steps",
          folder));
    return {};
  }
  if (resume != "auto" && resume != "required") return {{resume}};
  std::vector<std::string> damaged;
  std::vector<FoundCheckpoint> found = whole_checkpoints(folder, damaged);
  const fs::path pointer = fs::path(folder) / "latest";
  std::string pointed;
  try {
    if (!found.empty() || !damaged.empty() || fs::exists(pointer))
      pointed = checkpoint::latest_checkpoint(folder);
  } catch (const Error& e) {
    damaged.emplace_back(e.what());
  }
  const auto at = std::find_if(found.begin(), found.end(), [&](auto& f) { return f.tag == pointed; });
  const bool there = at != found.end();
  if (there) put_first(found, size_t(at - found.begin()), folder, say);
  if (!pointed.empty() && !there && damaged.empty())
    damaged.push_back(fmt::format("{} names {}, which does not exist", pointer.string(), in_quotes(pointed)));
  if (!there)
    for (const std::string& d : damaged) say("warning: " + d);
  require(!found.empty() || damaged.empty(), Exit::checkpoint,
          "{}: no usable checkpoint: {}; restore one, or restart from scratch in another folder", folder,
          damaged.empty() ? "" : damaged.front());
  return found;
}

}  // namespace cleave::app
