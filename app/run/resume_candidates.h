// Selection of the checkpoint that a run resumes from.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cleave::app {

struct FoundCheckpoint {
  std::string tag;
  int64_t step = -1;  // -1: not read yet
};

// Returns the candidates, best first: the checkpoint in `latest`, then newer steps before older
// ones. `resume` is "auto", "required", "never", or the name of the only candidate. Prints skipped
// checkpoints with the reason. Error(checkpoint) if checkpoints exist and none can be used.
std::vector<FoundCheckpoint> checkpoints_to_resume(const std::string& folder, const std::string& resume,
                                                   const std::function<void(const std::string&)>& say);

}  // namespace cleave::app
