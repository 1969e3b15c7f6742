#include "app/run/run_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "comm/rendezvous/rank_process.h"
#include "core/error.h"
#include "core/json.h"
#include "core/printable.h"
#include "core/write_error.h"
#include "launcher/job.h"

namespace cleave::app {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Returns the start time of a process in ticks since boot, which tells it from a later process with
// the same id. Empty if no such process exists, or if it is a zombie.
std::optional<std::string> begin_of(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = text.rfind(')');  // a name may contain blanks
  if (name_end == text.npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22 && fields >> field; ++i)
    if (i == 3 && (field == "Z" || field == "X")) return {};
  return field;
}

std::string text_of_this_process(const RunLock::Options& options) {
  const comm::RankProcess self = comm::this_process({});
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  return json{{"host", self.host},
              {"host_id", self.host_id},
              {"pid", self.pid},
              {"begin", begin_of(self.pid).value_or("")},
              {"job", options.job_id},
              {"attempt", options.attempt},
              {"since", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC",
                                    fmt::gmtime(std::chrono::system_clock::to_time_t(now)))}}
             .dump() +
         "\n";
}

// Returns the text and its modification time, or nothing without a file.
std::optional<std::pair<std::string, int64_t>> read_lock(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  struct stat status {};
  if (!in || ::stat(file.c_str(), &status) != 0) return {};
  return std::pair{std::string{std::istreambuf_iterator<char>(in), {}},
                   int64_t(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec};
}

// On mounts that do not rewrite files, this file is created again instead of rewriting the lock.
fs::path beat_file(const fs::path& lock) { return lock.string() + ".beat"; }

bool write_text(const fs::path& file, int flags, const std::string& text) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  if (fd < 0) return false;
  const bool written = ::write(fd, text.data(), text.size()) == ssize_t(text.size());
  const int error = errno;
  const bool closed = ::close(fd) == 0;
  if (!written && (flags & O_EXCL)) ::unlink(file.c_str());  // on a full disk
  if (!written) errno = error;
  return written && closed;
}

// Returns "pid 12 on host a, since ...", or the file's bytes in another format.
std::string name_of(const std::string& holder) {
  const json j = json_or_nothing(holder);
  try {
    return fmt::format("pid {} on {}, since {}", j.at("pid").get<int64_t>(),
                       printable(j.at("host").get<std::string>()),
                       printable(j.at("since").get<std::string>()));
  } catch (const json::exception&) {
    return in_quotes(holder);
  }
}

}  // namespace

RunLock::RunLock(fs::path file, const Options& options)
    : file_(std::move(file)), mine_(text_of_this_process(options)) {
  take(options);
  beat_ = std::thread([this, every = options.beat] { beat_until_released(every); });
}

RunLock::~RunLock() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  released_.notify_all();
  beat_.join();
  const auto now = read_lock(file_);
  std::error_code ignored;
  fs::remove(beat_file(file_), ignored);
  if (now && now->first == mine_) fs::remove(file_, ignored);
}

void RunLock::take(const Options& options) {
  for (;;) {
    if (write_text(file_, O_CREAT | O_EXCL, mine_)) return;
    require(errno == EEXIST, Exit::usage, "--output: {} cannot be created: {}; {}", file_.string(),
            std::strerror(errno), remedy_of_writing(errno));
    const auto holder = read_lock(file_);
    if (!holder) continue;  // just released
    require(left_behind(holder->first, options), Exit::usage,
            "--output {}: another job uses this folder ({}); choose another folder, or end that job; if it "
            "no longer exists, remove {}",
            file_.parent_path().string(), name_of(holder->first), file_.string());
    // Renames the lock and checks it again: if several jobs found the same lock, only one gets it.
    const fs::path aside = file_.string() + fmt::format(".left.{}", ::getpid());
    std::error_code error;
    fs::rename(file_, aside, error);
    if (error == std::errc::no_such_file_or_directory) continue;  // another job was first
    if (error) {
      // Without renames, two jobs that remove the same lock at the same moment may both continue.
      // The job with the removed file detects this before it saves.
      const auto now = read_lock(file_);
      if (!now || now->first != holder->first) continue;
      require(fs::remove(file_, error) || !error, Exit::usage, "{}: cannot be removed: {}", file_.string(),
              error.message());
    } else {
      const auto moved = read_lock(aside);
      if (moved && moved->first != holder->first) {
        fs::rename(aside, file_, error);  // the new lock of another job
        continue;
      }
      fs::remove(aside, error);
    }
    if (options.say)
      options.say(
          fmt::format("took over {}: its job ({}) no longer exists", file_.string(), name_of(holder->first)));
  }
}

bool RunLock::left_behind(const std::string& holder, const Options& options) const {
  const json there = json_or_nothing(holder), here = json::parse(mine_);
  const bool told = there.is_object() && there.value("host_id", json()) == here["host_id"] &&
                    there.value("pid", json()).is_number_integer();
  const auto of_this_job = [&] {
    return !here["job"].get<std::string>().empty() && there.is_object() &&
           there.value("job", json()) == here["job"] && there.value("attempt", json()).is_number_integer() &&
           there["attempt"] < here["attempt"];
  };
  if (of_this_job()) return true;
  if (told) return begin_of(there["pid"].get<int64_t>()) != there.value("begin", std::string());
  if (options.say)
    options.say(fmt::format(
        "{} belongs to {}, on another host: if the file does not change for {:.0f} s, this job takes it over",
        file_.string(), name_of(holder), double(options.patience.count()) / 1000));
  const auto first = read_lock(file_), first_beat = read_lock(beat_file(file_));
  for (const auto until = Clock::now() + options.patience; Clock::now() < until;) {
    require(!launcher::Job::stop_requested(), Exit::stopped, "stopped on request while waiting for {}",
            file_.string());
    std::this_thread::sleep_for(
        std::min<std::chrono::milliseconds>(options.patience / 20, std::chrono::seconds(1)));
    const auto now = read_lock(file_);
    if (!now) return true;  // released
    if (now != first || read_lock(beat_file(file_)) != first_beat) return false;
  }
  return true;
}

void RunLock::beat_until_released(std::chrono::milliseconds every) {
  std::unique_lock lock(mutex_);
  while (!released_.wait_for(lock, every, [&] { return leaving_; })) {
    const auto now = read_lock(file_);
    // Rewrites in place, and only its own text: another job may have taken over meanwhile.
    if (!now || now->first != mine_ || write_text(file_, 0, mine_)) continue;
    // Some mounts do not rewrite files. The lock itself always exists.
    std::error_code ignored;
    fs::remove(beat_file(file_), ignored);
    write_text(beat_file(file_), O_CREAT | O_EXCL, mine_);
  }
}

bool RunLock::require_held() {
  if (write_text(file_, O_CREAT | O_EXCL, mine_)) return true;
  require(errno == EEXIST, Exit::checkpoint, "{}: cannot be created: {}", file_.string(),
          std::strerror(errno));
  errno = 0;
  const auto holder = read_lock(file_);
  require(holder || errno == 0, Exit::checkpoint, "{}: cannot be read: {}", file_.string(),
          std::strerror(errno));
  require(holder && holder->first == mine_, Exit::checkpoint,
          "{}: another job took over this folder while this job hung ({}); nothing was written",
          file_.parent_path().string(), holder ? name_of(holder->first) : "unknown");
  return false;
}

}  // namespace cleave::app
