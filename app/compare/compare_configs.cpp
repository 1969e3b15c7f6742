#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/compare/compare_options.h"
#include "app/compare/judge.h"
#include "app/run/run_record.h"
#include "app/start/launch_program.h"
#include "core/error.h"

namespace cleave::app {
namespace fs = std::filesystem;
namespace {

// A private folder that is removed with its contents, or one that the user wants.
class Folder {
 public:
  explicit Folder(const std::string& wanted) : removed_(wanted.empty()) {
    if (!removed_) {
      std::error_code error;
      fs::create_directories(wanted, error);
      require(!error && fs::is_empty(wanted, error), Exit::usage,
              "--keep {}: cannot be created, or is not empty; choose another folder", wanted);
      path_ = wanted;
      return;
    }
    std::string name = (fs::temp_directory_path() / "cleave-compare.XXXXXX").string();
    require(mkdtemp(name.data()) != nullptr, Exit::usage, "{}: cannot be created: {}; set TMPDIR", name,
            std::strerror(errno));
    path_ = name;
  }
  ~Folder() {
    std::error_code error;
    if (removed_) fs::remove_all(path_, error);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  bool removed_;
};

volatile sig_atomic_t running_child = 0;

// Runs a program and waits for its end. Signals that would end this process end the program first, so that
// the caller can clean up. Standard output goes to `log`.
int run(const std::vector<std::string>& words, const fs::path& log) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = fork();
  require(child >= 0, Exit::usage, "fork: {}", std::strerror(errno));
  if (child == 0) {
    if (!std::freopen(log.c_str(), "w", stdout)) _exit(1);
    execv(argv[0], argv.data());
    _exit(127);
  }
  running_child = child;
  struct sigaction forward {
  }, before[2];
  forward.sa_handler = [](int signal) { kill(pid_t(running_child), signal); };
  constexpr int kSignals[] = {SIGINT, SIGTERM};
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &forward, &before[i]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &before[i], nullptr);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Trains with one of the configurations and returns its record, or the exit code of a failure.
struct Trained {
  std::optional<RunRecord> record;
  int code = 0;
};

Trained train(const CompareOptions& o, size_t config, const fs::path& folder, const Arguments& more) {
  fs::create_directory(folder);
  std::vector<std::string> words{
      this_program(), "launch", "-q", "-n", std::to_string(o.ranks_of(config)), "--"};
  const Arguments own{
      "train",   "--deepspeed_config",    o.configs[config], "--quiet",      "--resume", "never",
      "--steps", std::to_string(o.steps), "--record",        folder.string()};
  for (const Arguments& part : {own, more, o.command}) words.insert(words.end(), part.begin(), part.end());
  if (const int code = run(words, folder / "output.txt")) return {std::nullopt, code};
  return {RunRecord(folder), 0};
}

nlohmann::ordered_json to_json(const Compared& c) {
  nlohmann::ordered_json out{
      {"what", c.where}, {"step", c.step}, {"difference", c.difference}, {"allowed", c.allowed}};
  if (!c.values.empty()) out["values"] = c.values;
  return out;
}

void print_json(const Verdict& v) {
  nlohmann::ordered_json out{{"same", v.different.empty()},
                             {"steps", v.steps},
                             {"parameters", v.parameters},
                             {"skipped", v.skipped}};
  for (const auto& [name, list] : {std::pair{"closest", &v.closest}, {"different", &v.different}}) {
    out[name] = nlohmann::json::array();
    for (const Compared& c : *list) out[name].push_back(to_json(c));
  }
  if (!v.hint.empty()) out["hint"] = v.hint;
  std::printf("%s\n", out.dump(2).c_str());
}

std::string row(const Compared& c) {
  return fmt::format("{:<52} step {:<3} difference {:<9.3g} allowed {:<9.3g} {}", c.where, c.step,
                     c.difference, c.allowed, c.values);
}

std::string on_ranks(int ranks) { return fmt::format("on {} rank{}", ranks, ranks == 1 ? "" : "s"); }

void print(const Verdict& v, const CompareOptions& o) {
  constexpr size_t kShown = 8;
  const auto runs = fmt::format("{} {}, {} {}", o.configs[0], on_ranks(o.ranks_of(0)), o.configs[1],
                                on_ranks(o.ranks_of(1)));
  if (v.different.empty()) {
    std::printf("same: %ld steps, %ld parameters; %s\n", long(v.steps), long(v.parameters), runs.c_str());
    if (v.skipped > 0)
      std::printf("note: %ld steps are skipped after an overflow, so their gradients are not compared\n",
                  long(v.skipped));
    std::printf("closest to the limits:\n");
    for (const Compared& c : v.closest) std::printf("  %s\n", row(c).c_str());
    return;
  }
  const Compared& first = v.different.front();
  std::printf("different: step %ld, %s; %s\n", long(first.step), first.where.c_str(), runs.c_str());
  if (!v.hint.empty()) std::printf("hint: %s\n", v.hint.c_str());
  for (size_t i = 0; i < std::min(kShown, v.different.size()); ++i)
    std::printf("  %s\n", row(v.different[i]).c_str());
  if (v.different.size() > kShown) std::printf("  and %zu more\n", v.different.size() - kShown);
}

}  // namespace

int compare_configs(CompareOptions o) {
  if (!o.command.empty() && o.command.front() == "train") o.command.erase(o.command.begin());
  for (const char* own : {"--output", "--resume", "--deepspeed_config", "--deepspeed"})
    require(std::ranges::find(o.command, own) == o.command.end(), Exit::usage,
            "{}: not an option of a comparison; leave it out", own);
  const Folder folder(o.keep);
  const auto say = [&](size_t config, const char* what) {
    std::fprintf(stderr, "compare: %s %s%s\n", o.configs[config].c_str(),
                 on_ranks(o.ranks_of(config)).c_str(), what);
  };
  say(0, "");
  const std::string first = (folder.path() / "first").string();
  const Trained a = train(o, 0, first, {});
  if (!a.record) return a.code;
  say(1, ", from the weights of each step of the first");
  const Trained b = train(o, 1, folder.path() / "second", {"--follow", first});
  if (!b.record) return b.code;
  say(0, ", with the weights moved by one rounding");
  const Trained c =
      train(o, 0, folder.path() / "moved",
            {"--follow", first, "--perturb", fmt::format("{}", rounding_of(*a.record, *b.record))});
  if (!c.record) return c.code;
  const Verdict verdict = judge(*a.record, *b.record, *c.record);
  o.json ? print_json(verdict) : print(verdict, o);
  return int(verdict.different.empty() ? Exit::ok : Exit::different);
}

}  // namespace cleave::app
