#include "monitor/live/live_run.h"

#include <fmt/core.h>

#include <charconv>
#include <cstdio>
#include <memory>
#include <utility>

#include "core/environment.h"
#include "monitor/live/page.h"
#include "monitor/metrics_sink.h"

namespace cleave::monitor {
namespace {

class Served final : public MetricsLines {
 public:
  Served(const HttpAddress& at, const std::string& token, const std::string& run)
      : run_(run), server_(at, token, answers_about(run_)) {}
  uint16_t port() const { return server_.port(); }

 private:
  void write(const std::string& line) override { run_.add(line); }
  RunState run_;
  HttpServer server_;  // destroyed first: it reads the state
};

}  // namespace

HttpServer::Answers answers_about(const RunState& run) {
  return [&run](const std::string& path, const std::map<std::string, std::string>& query) -> HttpReply {
    if (path == "/") return {.type = "text/html; charset=utf-8", .body = page_of()};
    if (path == "/metrics")
      return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = run.prometheus()};
    if (path != "/status") return {.status = 404, .body = "not found; there are /, /status and /metrics\n"};
    int64_t after = 0;
    if (const auto given = query.find("after"); given != query.end()) {
      const char* end = given->second.data() + given->second.size();
      if (const auto [at, failed] = std::from_chars(given->second.data(), end, after);
          failed != std::errc() || at != end)
        return {.status = 400, .body = "after: not a step\n"};
    }
    return {.type = "application/json", .body = run.as_json(after)};
  };
}

std::unique_ptr<Sink> live_run(const std::string& key, const std::string& at, const std::string& run) {
  const HttpAddress address = HttpAddress::read(at, key);
  const std::string token = environment_value("CLEAVE_HTTP_TOKEN");
  auto served = std::make_unique<Served>(address, token, run);
  const std::string host =
      address.address.find(':') == std::string::npos ? address.address : "[" + address.address + "]";
  std::fprintf(stderr, "live page: http://%s:%d/%s\n", host.c_str(), served->port(),
               token.empty() ? "" : "?token=... (the value of CLEAVE_HTTP_TOKEN)");
  return std::make_unique<MetricsSink>(key, std::move(served));
}

}  // namespace cleave::monitor
