// Files of what ranks say, one a rank, named as DeepSpeed's launcher names them.
#pragma once
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/launch_plan.h"

namespace cleave::launcher {

class RankLogs {
 public:
  // Makes the folder, and in it "20261122223000_rank3.log" for each rank, with the time of now. Error(usage)
  // where that cannot be.
  RankLogs(const std::string& folder, const std::vector<RankStart>& ranks);

  // Both of a rank's outputs, in the order in which they came.
  void write(size_t index, std::string_view text) { files_[index] << text << std::flush; }

 private:
  std::vector<std::ofstream> files_;
};

}  // namespace cleave::launcher
