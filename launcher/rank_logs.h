// Log files of rank output, one per rank, named as by DeepSpeed's launcher.
#pragma once
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/launch_plan.h"

namespace cleave::launcher {

class RankLogs {
 public:
  // Creates the folder and a file "20261122223000_rank3.log" per rank, with the current time. Throws
  // Error(usage).
  RankLogs(const std::string& folder, const std::vector<RankStart>& ranks);

  // Appends output of either stream of a rank, in order of arrival.
  void write(size_t index, std::string_view text) { files_[index] << text << std::flush; }

 private:
  std::vector<std::ofstream> files_;
};

}  // namespace cleave::launcher
