#include "monitor/csv_monitor.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "core/error.h"
#include "core/warnings.h"

namespace cleave::monitor {

CsvMonitor::CsvMonitor(const std::string& output_path, const std::string& job_name)
    : folder_(
          (std::filesystem::path(output_path.empty() ? "csv_monitor" : output_path) / job_name).string()) {}

std::string CsvMonitor::path_of(std::string_view tag) const {
  std::string name(tag);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '/' || c == ' '; }, '_');
  return (std::filesystem::path(folder_) / (name + ".csv")).string();
}

void CsvMonitor::scalar(std::string_view tag, double value, int64_t step) {
  auto found = files_.find(tag);
  if (found == files_.end()) {
    found = files_.emplace(tag, std::nullopt).first;
    try {
      OutputFile& file = found->second.emplace(path_of(tag), OutputFile::Open::append);
      if (file.empty()) file.write(fmt::format("step,{}\n", tag.substr(tag.rfind('/') + 1)));
    } catch (const Error& e) {
      warn("{}", e.what());
    }
  }
  if (found->second) found->second->write(fmt::format("{},{}\n", step, value));
}

}  // namespace cleave::monitor
