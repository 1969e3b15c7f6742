// Place of the MLflow run of a training, from the ds_config's section cleave.mlflow and MLflow's environment
// variables.
#pragma once
#include <functional>
#include <string>

#include "config_schema/ds_config.h"

namespace cleave::monitor {

struct MlflowTarget {
  bool server = false;  // otherwise a folder
  std::string place;    // "https://host/path" without a slash at the end, or the folder
  bool azure = false;   // an Azure ML job owns the run, its status and its token
  std::string run_id;   // of an existing run; empty: create one
  std::string experiment_id, experiment_name;  // of a new run; the id counts, if both are given
  std::string run_name;                        // empty: the server chooses
  std::string token, login;                    // Bearer token, or user:password
  double token_ends_s = 0;                     // since 1970; 0: unknown
  bool any_certificate = false;

  std::string shown() const;  // the place for messages, without secrets
};

using Variable = std::function<std::string(const char* name)>;  // empty if it is unset
std::string variable_of_process(const char* name);

// Values of the section replace those of the variables. Throws Error(usage) for unsupported places.
MlflowTarget mlflow_target(const config::MlflowConfig& config,
                           const Variable& variable = variable_of_process);

}  // namespace cleave::monitor
