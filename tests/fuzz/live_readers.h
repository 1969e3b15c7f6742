// Readers of what a live run receives: HTTP requests, and lines of metrics.
#pragma once
#include <string>
#include <vector>

namespace cleave {

bool read_http(const std::string& bytes);
std::vector<std::string> http_seeds();
bool read_metrics(const std::string& bytes);
std::vector<std::string> metrics_seeds();

}  // namespace cleave
