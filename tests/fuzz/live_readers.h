// Readers of what a live run receives: HTTP requests, lines of metrics, and answers of MLflow servers and of
// Azure's instance metadata.
#pragma once
#include <string>
#include <vector>

namespace cleave {

bool read_http(const std::string& bytes);
std::vector<std::string> http_seeds();
bool read_metrics(const std::string& bytes);
std::vector<std::string> metrics_seeds();
bool read_mlflow(const std::string& bytes);
std::vector<std::string> mlflow_seeds();
bool read_events(const std::string& bytes);
std::vector<std::string> events_seeds();

}  // namespace cleave
