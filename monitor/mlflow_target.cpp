#include "monitor/mlflow_target.h"

#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "core/secrets.h"

namespace cleave::monitor {
namespace {

constexpr std::string_view kAzure = "azureml://";

std::string first_of(std::initializer_list<std::string> values) {
  for (const std::string& value : values)
    if (!value.empty()) return value;
  return "";
}

void place(MlflowTarget& t, const std::string& uri, const char* origin) {
  t.azure = uri.starts_with(kAzure);
  t.server = t.azure || uri.starts_with("http://") || uri.starts_with("https://");
  if (t.server) {
    t.place = t.azure ? "https://" + uri.substr(kAzure.size()) : uri;
    t.place.resize(std::min(t.place.find_first_of("?#"), t.place.size()));
    while (t.place.ends_with('/')) t.place.pop_back();
    return;
  }
  const bool file = uri.starts_with("file:");
  const bool folder = file || (uri.find(':') == uri.npos && uri != "databricks" && uri != "uc");
  require(folder, Exit::usage,
          "{}: unsupported (got {}, expected http://, https://, azureml:// or a folder); start mlflow server "
          "with this store and give its address",
          origin, without_secrets(uri));
  t.place = file ? uri.substr(5) : uri;
  if (t.place.starts_with("//")) t.place.erase(0, 2);
}

}  // namespace

std::string variable_of_process(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string MlflowTarget::shown() const { return without_secrets(place); }

MlflowTarget mlflow_target(const config::MlflowConfig& config, const Variable& variable) {
  MlflowTarget t;
  const std::string uri = variable("MLFLOW_TRACKING_URI");
  if (!config.tracking_uri.empty())
    place(t, config.tracking_uri, "cleave.mlflow.tracking_uri");
  else
    place(t, uri.empty() ? "mlruns" : uri, "MLFLOW_TRACKING_URI");
  t.run_id = variable("MLFLOW_RUN_ID");
  if (t.azure && t.run_id.empty()) t.run_id = variable("AZUREML_RUN_ID");
  t.experiment_name = first_of({config.experiment_name, variable("MLFLOW_EXPERIMENT_NAME")});
  // The name in the section replaces both variables; Azure's token needs the id of the job's experiment.
  if (config.experiment_name.empty() || t.azure) t.experiment_id = variable("MLFLOW_EXPERIMENT_ID");
  t.run_name = first_of({config.run_name, variable("MLFLOW_RUN_NAME")});
  t.any_certificate = variable("MLFLOW_TRACKING_INSECURE_TLS") == "true";
  const std::string user = variable("MLFLOW_TRACKING_USERNAME");
  if (!user.empty())
    t.login = user + ":" + variable("MLFLOW_TRACKING_PASSWORD");
  else
    t.token = first_of({variable("MLFLOW_TRACKING_TOKEN"), t.azure ? variable("AZUREML_RUN_TOKEN") : ""});
  if (t.azure) t.token_ends_s = std::strtod(variable("AZUREML_RUN_TOKEN_EXPIRY").c_str(), nullptr);
  return t;
}

}  // namespace cleave::monitor
