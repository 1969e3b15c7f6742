#include "launcher/rank_logs.h"

#include <ctime>
#include <filesystem>

#include "core/error.h"

namespace cleave::launcher {

RankLogs::RankLogs(const std::string& folder, const std::vector<RankStart>& ranks) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require(!error, Exit::usage, "--enable_each_rank_log: {} cannot be a folder: {}", folder, error.message());
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char time[32] = {};
  std::strftime(time, sizeof(time), "%Y%m%d%H%M%S", &local);
  for (const RankStart& r : ranks) {
    const std::string path = fmt::format("{}/{}_rank{}.log", folder, time, r.rank);
    files_.emplace_back(path, std::ios::app);
    require(bool(files_.back()), Exit::usage, "--enable_each_rank_log: {} cannot be written", path);
  }
}

}  // namespace cleave::launcher
