#include "tests/fuzz/live_readers.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "monitor/live/http_server.h"
#include "monitor/live/run_state.h"

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

}  // namespace cleave
