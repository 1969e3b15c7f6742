#include "monitor/csv_monitor.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"

namespace cleave {

CsvMonitor::CsvMonitor(const std::string& output_path, const std::string& job_name)
    : folder_(
          (std::filesystem::path(output_path.empty() ? "csv_monitor" : output_path) / job_name).string()) {}

void CsvMonitor::scalar(std::string_view tag, double value, int64_t step) {
  auto found = files_.find(tag);
  if (found == files_.end()) {
    std::string name(tag);
    std::replace_if(
        name.begin(), name.end(), [](char c) { return c == '/' || c == ' '; }, '_');
    const auto path = std::filesystem::path(folder_) / (name + ".csv");
    found = files_.emplace(tag, OutputFile(path.string(), OutputFile::Open::append)).first;
    if (found->second.empty()) found->second.write(fmt::format("step,{}\n", tag.substr(tag.rfind('/') + 1)));
  }
  found->second.write(fmt::format("{},{}\n", step, value));
}

}  // namespace cleave
