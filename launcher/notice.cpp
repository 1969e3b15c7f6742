#include "launcher/notice.h"

#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/http.h"
#include "core/json.h"
#include "core/printable.h"
#include "core/warnings.h"
#include "launcher/variables.h"

namespace cleave::launcher {
namespace {

using nlohmann::json;

constexpr const char* kMetadata = "http://169.254.169.254/metadata";
// Chassis asset tag of all virtual machines of Azure.
constexpr std::string_view kAzure = "7783-7084-3265-9085-8269-3286-77";
constexpr auto kAnswerWithin =
    std::chrono::seconds(2);  // the process waits as long for the thread at its end

bool on_azure() {
  std::ifstream file("/sys/class/dmi/id/chassis_asset_tag");
  std::string tag;
  return std::getline(file, tag) && tag == kAzure;
}

std::string text_at(const json& event, const char* key) {
  const auto it = event.find(key);
  return it != event.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// Asks for the events of this machine.
class Events {
 public:
  explicit Events(std::string metadata) : metadata_(std::move(metadata)), http_("CLEAVE_SCHEDULED_EVENTS") {}

  std::optional<std::string> look() {
    if (machine_.empty()) machine_ = body_of("/instance/compute/name?api-version=2021-02-01&format=text");
    return event_in(body_of("/scheduledevents?api-version=2020-07-01"), machine_);
  }

 private:
  std::string body_of(const char* path) {
    const HttpAnswer answer =
        http_.send({.url = metadata_ + path, .headers = {"Metadata: true"}, .timeout = kAnswerWithin});
    return answer.status == 200 ? answer.body : std::string();
  }

  const std::string metadata_;
  Http http_;
  std::string machine_;
};

}  // namespace

NoticeSources notice_sources(const Environment& env) {
  const Variables variables(env);
  NoticeSources sources{variables.text("CLEAVE_NOTICE_FILE"), variables.text("CLEAVE_SCHEDULED_EVENTS")};
  const bool given = !sources.metadata.empty();
  require(
      !given || sources.metadata == "off" || sources.metadata.starts_with("http://"), Exit::usage,
      "CLEAVE_SCHEDULED_EVENTS: wrong value (got {}, expected off or an address that begins with http://); "
      "change or unset it",
      in_quotes(sources.metadata));
  if (sources.metadata == "off")
    sources.metadata.clear();
  else if (!given && on_azure())
    sources.metadata = kMetadata;
  return sources;
}

std::optional<std::string> event_in(std::string_view answer, const std::string& machine) {
  constexpr std::pair<const char*, const char*> kEnds[] = {
      {"Preempt", "preempt"}, {"Terminate", "delete"}, {"Reboot", "restart"}, {"Redeploy", "move"}};
  const json document = json_or_nothing(answer);
  const auto events = document.is_object() ? document.find("Events") : document.end();
  if (!document.is_object() || events == document.end() || !events->is_array()) return {};
  for (const json& event : *events) {
    if (!event.is_object()) continue;
    const std::string type = text_at(event, "EventType");
    const auto ends =
        std::find_if(std::begin(kEnds), std::end(kEnds), [&](const auto& e) { return type == e.first; });
    if (ends == std::end(kEnds)) continue;
    const auto of = event.find("Resources");
    const bool listed = of != event.end() && of->is_array();
    if (!machine.empty() && listed && std::find(of->begin(), of->end(), json(machine)) == of->end()) continue;
    const std::string when = text_at(event, "NotBefore");  // empty if it has begun
    return fmt::format("Azure will {} this host {}", ends->second,
                       when.empty() ? "now" : "at " + printable(when));
  }
  return {};
}

NoticeWatch::NoticeWatch(NoticeSources sources, std::function<void(const std::string&)> noticed,
                         std::chrono::milliseconds every)
    : sources_(std::move(sources)),
      noticed_(std::move(noticed)),
      every_(every),
      thread_([this] { watch(); }) {}

NoticeWatch::~NoticeWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  end_.notify_all();
  thread_.join();
}

void NoticeWatch::watch() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::optional<Events> events;
  try {
    if (!sources_.metadata.empty()) events.emplace(sources_.metadata);
  } catch (const Error& e) {
    warn("{}; scheduled events of Azure do not stop this job", e.what());
  }
  std::unique_lock lock(mutex_);
  while (!end_.wait_for(lock, every_, [&] { return ending_; })) {
    lock.unlock();
    std::error_code ignored;
    std::optional<std::string> notice;
    if (!sources_.file.empty() && std::filesystem::exists(sources_.file, ignored))
      notice = fmt::format("the file {} exists", printable(sources_.file));
    if (!notice && events) notice = events->look();
    if (notice) return noticed_(*notice);
    lock.lock();
  }
}

}  // namespace cleave::launcher
