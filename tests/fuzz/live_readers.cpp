#include "tests/fuzz/live_readers.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "core/http.h"
#include "launcher/notice.h"
#include "monitor/live/http_server.h"
#include "monitor/live/run_state.h"
#include "monitor/mlflow_server.h"

namespace cleave {

namespace {

// Returns true if the request reaches the handler.
bool is_answered(const std::string& bytes, const std::string& token) {
  bool handled = false;
  const std::string answer = monitor::answer_to(
      bytes, {}, token, [&](const std::string& path, const std::map<std::string, std::string>& query) {
        handled = true;
        CHECK(path.starts_with('/'), "path {}", path);
        return monitor::HttpReply{.body = path + std::to_string(query.size())};
      });
  CHECK(answer.empty() || answer.starts_with("HTTP/1."), "answer {}", answer);
  return handled;
}

}  // namespace

bool read_http(const std::string& bytes) {
  const bool with_token = is_answered(bytes, "secret");
  CHECK(!with_token || bytes.find("ecret") != bytes.npos || bytes.find('%') != bytes.npos,
        "read without the token");
  return is_answered(bytes, "") || with_token;
}

std::vector<std::string> http_seeds() {
  return {"GET /status?after=12&x=%20 HTTP/1.1\r\nHost: localhost:8080\r\nAccept: */*\r\n\r\n",
          "HEAD / HTTP/1.0\r\nHost: [::1]\r\nConnection: keep-alive\r\n\r\n",
          "GET /metrics?token=secret HTTP/1.1\r\nHost: a\r\n\r\n",
          "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\n\r\n"};
}

bool read_metrics(const std::string& bytes) {
  monitor::RunState run("a");
  bool any = false;
  std::istringstream lines(bytes);
  for (std::string line; std::getline(lines, line);) any = run.add(line) || any;
  const auto state = nlohmann::json::parse(run.as_json());
  CHECK(state.at("curve").size() <= monitor::RunState::kMostPoints, "{} points", state.at("curve").size());
  run.prometheus();
  return any;
}

std::vector<std::string> metrics_seeds() {
  return {
      R"({"event":"start","model":"tiny","world_size":2,"steps":3,"memory_planned":{"device":{"weights":8}}}
{"step":1,"epoch":0.5,"loss":"nan","lr":0.1,"tokens":9,"step_ms":2,"comm_bytes":{"all_reduce":4},"times_ms":{"forward":1}}
{"event":"evaluation","step":1,"data":"a","validation_loss":2.5}
{"event":"warning","text":"slow"}
{"event":"choices","choices":{"a":"b"}}
{"step":2,"loss":1e308,"skipped_total":1}
{"event":"end","step":2})"};
}

// The answers to the requests of a run, one after the other: the first line of each has the status and
// Retry-After, a line of dots ends it. The rest of the requests get no answer.
bool read_mlflow(const std::string& bytes) {
  constexpr const char* kSecret = "the secret token";
  std::istringstream lines(bytes);
  const auto send = [&](const monitor::MlflowTarget& target) {
    return [&lines, place = target.place](const HttpRequest& request) {
      CHECK(request.url.starts_with(place), "a request to {}", request.url);
      CHECK(request.url.find_first_of(" \r\n") == std::string::npos, "a blank in {}", request.url);
      HttpAnswer answer;
      std::string line, after;
      if (!std::getline(lines, line)) return HttpAnswer{.problem = "no answer"};
      std::istringstream(line) >> answer.status >> after;
      answer.retry_after_s = retry_after(after);
      while (std::getline(lines, line) && line != "...") answer.body += line;
      return answer;
    };
  };
  monitor::MlflowTarget target;
  target.server = true, target.place = "http://host/mlflow/v1.0", target.experiment_name = "first steps";
  target.token = kSecret;
  if (!bytes.empty() && bytes[0] % 2)
    target.azure = true, target.run_id = "a run", target.experiment_id = "1";
  monitor::MlflowServer server(target, send(target));
  const monitor::MlflowMetric metric{"loss", 0.5, 1, 1};
  bool any = false;
  const auto call = [&](auto&& body) {
    try {
      body();
      any = true;
    } catch (const monitor::MlflowFailure& e) {
      const std::string text = e.what();
      CHECK(text.find(kSecret) == text.npos, "a secret in a message: {}", text);
      CHECK(text.find('\n') == text.npos && text.find('\x1b') == text.npos,
            "control characters in a message");
      CHECK(e.retry_after_s >= 0 && e.retry_after_s <= 86400, "waits {} s", e.retry_after_s);
    }
  };
  for (int attempt = 0; attempt < 2; ++attempt) call([&] { server.open({{"a", "b"}}); });
  call([&] { server.log({&metric, 1}, {{"lr", "0.1"}}, {}); });
  call([&] { server.finish("FINISHED", 2); });
  return any;
}

std::vector<std::string> mlflow_seeds() {
  const std::string experiment = R"(200
{"experiment": {"experiment_id": "7"}}
...
)",
                    run = R"(200
{"run": {"info": {"run_id": "abc", "artifact_uri": "mlflow-artifacts:/7/abc/artifacts"}, "data": {}}}
...
)",
                    done = "200\n{}\n...\n";
  return {experiment + run + done + done,
          "404\n{\"error_code\": \"RESOURCE_DOES_NOT_EXIST\"}\n...\n200\n{\"experiment_id\": 9}\n...\n" +
              run + done,
          "429 30\n{\"message\": \"the secret token is busy\"}\n...\n503 inf\n<html>\n...\n",
          "1\n" + run + done + done};
}

bool read_events(const std::string& bytes) {
  const auto event = launcher::event_in(bytes, "vm_3");
  CHECK(!event || event->find('\n') == event->npos, "several lines: {}", *event);
  return event.has_value();
}

std::vector<std::string> events_seeds() {
  return {
      R"({"DocumentIncarnation": 1, "Events": [{"EventId": "C7061BAC", "EventStatus": "Scheduled", "EventType":
"Preempt", "ResourceType": "VirtualMachine", "Resources": ["vm_2", "vm_3"], "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT",
"Description": "", "EventSource": "Platform", "DurationInSeconds": -1}, {"EventType": "Freeze", "Resources": ["vm_3"]}]})",
      R"({"Events": []})"};
}

}  // namespace cleave
