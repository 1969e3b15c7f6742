// Writes scalars as csv, in the same files as DeepSpeed's csv_monitor: one per tag, "Train/Samples/lr" in
// <output_path>/<job_name>/Train_Samples_lr.csv with the header "step,lr".
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "monitor/output_file.h"

namespace cleave::monitor {

class CsvMonitor {
 public:
  // Creates no file yet. An empty output_path means "csv_monitor" in the current folder.
  CsvMonitor(const std::string& output_path, const std::string& job_name);

  // Appends a row to the tag's file; creates a missing file and writes the header to an empty one. If the
  // file cannot be opened, prints one warning on stderr and skips the tag.
  void scalar(std::string_view tag, double value, int64_t step);

  std::string path_of(std::string_view tag) const;  // file of the tag
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  std::map<std::string, std::optional<OutputFile>, std::less<>> files_;  // by tag; nullopt: cannot be opened
};

}  // namespace cleave::monitor
