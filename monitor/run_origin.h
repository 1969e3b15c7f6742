// User and command of this process, as MLflow's tags.
#pragma once
#include <map>
#include <string>

namespace cleave::monitor {

// Returns mlflow.user, mlflow.source.name ("cleave train", or the file of a script) and mlflow.source.type.
std::map<std::string, std::string> tags_of_origin();

}  // namespace cleave::monitor
