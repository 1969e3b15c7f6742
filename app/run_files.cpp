#include "app/run_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;

bool has_metrics(const fs::path& file) {
  constexpr std::string_view kStart = "{\"event\":\"start\"", kStep = "{\"step\":";
  std::string begin(kStart.size(), ' ');
  std::ifstream in(file, std::ios::binary);
  in.read(begin.data(), std::streamsize(begin.size()));
  return in && (begin == kStart || begin.starts_with(kStep));
}

}  // namespace

std::string metrics_file_of(const std::string& run) {
  std::error_code none;
  if (!fs::is_directory(run, none)) return run;
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(run, none))
    if (entry.path().extension() == ".jsonl" && has_metrics(entry.path()))
      found.push_back(entry.path().string());
  std::ranges::sort(found);
  require(!found.empty(), Exit::usage,
          "{}: no file of metrics in this folder (expected one *.jsonl); train with --metrics FILE.jsonl, "
          "and give "
          "that file",
          run);
  require(found.size() == 1, Exit::usage, "{}: several files of metrics (got {}); give one of them", run,
          fmt::join(found, ", "));
  return found.front();
}

}  // namespace cleave::app
