// Serves the state of a training over HTTP while it runs: a page at "/", JSON at "/status"
// (RunState::as_json, points after the step in the parameter `after`), and the text format of Prometheus at
// "/metrics".
#pragma once
#include <memory>
#include <string>

#include "monitor/live/http_server.h"
#include "monitor/live/run_state.h"
#include "monitor/metrics.h"
#include "monitor/sink.h"

namespace cleave::monitor {

// The answers of a server about a run, which must outlive it.
HttpServer::Answers answers_about(const RunState& run);

// Returns a sink that serves the events it takes until it is destroyed. Starts to listen, and prints the
// address of the page to stderr. at: the value of the option or key `key`, as HttpAddress::read reads it. The
// token is that of CLEAVE_HTTP_TOKEN. Throws Error(usage) as HttpServer does.
std::unique_ptr<Sink> live_run(const std::string& key, const std::string& at, const std::string& run);

}  // namespace cleave::monitor
