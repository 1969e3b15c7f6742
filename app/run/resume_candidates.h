// Which checkpoints of a folder a run may go on from.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cleave::app {

struct FoundCheckpoint {
  std::string tag;
  int64_t step = -1;  // -1: nobody looked
};

// Best first: the one that `latest` names, then those of newer steps before older ones. `resume` is "auto",
// "required", "never", or the name of the only one that may be taken. Says which are passed over, and why.
// Error(checkpoint) where there are some and none can be used.
std::vector<FoundCheckpoint> checkpoints_to_resume(const std::string& folder, const std::string& resume,
                                                   const std::function<void(const std::string&)>& say);

}  // namespace cleave::app
