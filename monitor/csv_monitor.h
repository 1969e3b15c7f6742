// Scalars as csv, in the files that DeepSpeed's csv_monitor writes: one a tag, "Train/Samples/lr" in
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
  // Makes nothing yet. An empty output_path is "csv_monitor" in the current folder.
  CsvMonitor(const std::string& output_path, const std::string& job_name);

  // Adds a row to the tag's file, which is made with its header when it is missing or empty. When it cannot
  // be opened, one warning on stderr says so and the tag is left out.
  void scalar(std::string_view tag, double value, int64_t step);

  std::string path_of(std::string_view tag) const;  // the tag's file
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  std::map<std::string, std::optional<OutputFile>, std::less<>> files_;  // by tag; none: it cannot be opened
};

}  // namespace cleave::monitor
