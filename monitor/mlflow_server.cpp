#include "monitor/mlflow_server.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "core/printable.h"
#include "core/secrets.h"

namespace cleave::monitor {
namespace {

using nlohmann::json;
using Kind = MlflowFailure::Kind;

constexpr std::chrono::minutes kTokenAge{5};
constexpr double kSoonS = 600;
constexpr std::string_view kMasked = "masked";
constexpr const char* kApi = "/api/2.0/mlflow/";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (std::isalnum(uint8_t(c)) || c == '-' || c == '_' || c == '.' || c == '/')
      out += c;
    else
      out += fmt::format("%{:02X}", uint8_t(c));
  return out;
}

// JSON has no such numbers; protobuf's JSON has these words for them.
json json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

json list_of(const MlflowText& texts) {
  json out = json::array();
  for (const auto& [key, value] : texts) out.push_back({{"key", key}, {"value", value}});
  return out;
}

std::string dumped(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// A string or a number, at a path of members; "" if it is missing.
std::string member(const json& value, std::initializer_list<const char*> path) {
  const json* at = &value;
  for (const char* name : path) {
    if (!at->is_object() || !at->contains(name)) return "";
    at = &(*at)[name];
  }
  return at->is_string() ? at->get<std::string>() : at->is_number_integer() ? at->dump() : "";
}

// Reads an error's text without credentials: a server or proxy may repeat those of the request.
std::string reason(const HttpAnswer& answer, const MlflowTarget& target) {
  const json body = json_or_nothing(answer.body);
  std::string text = member(body, {"message"});
  if (text.empty()) text = member(body, {"error_code"});
  for (const std::string& secret : {target.token, target.login.substr(target.login.find(':') + 1)})
    for (size_t at = 0; !secret.empty() && (at = text.find(secret, at)) != std::string::npos;
         at += kMasked.size())
      text.replace(at, secret.size(), kMasked);
  return fmt::format("status {}{}", answer.status,
                     text.empty() ? "" : ": " + in_line(without_secrets(text), 200));
}

Kind kind_of(int status) {
  if (status == 408 || status == 429 || status >= 500) return Kind::busy;
  return status == 401 || status == 403 || status == 404 || status < 400 ? Kind::lost : Kind::refused;
}

}  // namespace

MlflowServer::MlflowServer(MlflowTarget target)
    : MlflowServer(std::move(target), [http = std::make_shared<Http>("cleave.mlflow")](
                                          const HttpRequest& request) { return http->send(request); }) {}

MlflowServer::MlflowServer(MlflowTarget target, Send send)
    : target_(std::move(target)), send_(std::move(send)), run_(target_.run_id) {}

std::string MlflowServer::sent(const char* method, const std::string& url, const std::string& body) {
  HttpRequest request{.method = method,
                      .url = url,
                      .headers = {"Content-Type: application/json"},
                      .body = body,
                      .login = target_.login,
                      .any_certificate = target_.any_certificate};
  if (!target_.token.empty()) request.headers.push_back("Authorization: Bearer " + target_.token);
  const HttpAnswer answer = send_(request);
  if (answer.status == 0) throw MlflowFailure(Kind::unreachable, without_secrets(answer.problem));
  if (answer.status >= 200 && answer.status < 300) return answer.body;
  throw MlflowFailure(kind_of(answer.status), reason(answer, target_), answer.retry_after_s);
}

// Azure ML gives a new token for an old one that is still valid. An expired one cannot be replaced: the job's
// environment has no other credentials.
void MlflowServer::refresh_token() {
  constexpr std::string_view kService = "/mlflow/v1.0";
  const size_t at = target_.place.find(kService);
  if (!target_.azure || at == std::string::npos) return;
  const bool ends = target_.token_ends_s > 0 && target_.token_ends_s < double(unix_ms()) / 1e3 + kSoonS;
  if (Clock::now() - refreshed_ < kTokenAge && !ends) return;
  refreshed_ = Clock::now(), target_.token_ends_s = 0;
  if (target_.experiment_id.empty() || run_.empty()) return;
  std::string url = target_.place;
  url.replace(at, kService.size(), "/history/v1.0");
  try {
    const json got = json_or_nothing(
        sent("GET", url + "/experimentids/" + target_.experiment_id + "/runs/" + run_ + "/token", ""));
    if (const std::string token = member(got, {"token"}); !token.empty()) target_.token = token;
  } catch (const MlflowFailure&) {  // the old token may still be valid
  }
}

json MlflowServer::call(const char* method, const std::string& path, const json& body) {
  refresh_token();
  const std::string text =
      sent(method, target_.place + kApi + path, body.is_null() ? std::string() : dumped(body));
  json answer = json_or_nothing(text);
  if (!answer.is_object())
    throw MlflowFailure(Kind::busy, "the answer is not JSON; the address is not that of an MLflow server");
  return answer;
}

std::string MlflowServer::experiment() {
  if (!target_.experiment_id.empty()) return target_.experiment_id;
  if (target_.experiment_name.empty()) return "0";
  try {
    const json found =
        call("GET", "experiments/get-by-name?experiment_name=" + escaped(target_.experiment_name), nullptr);
    if (const std::string id = member(found, {"experiment", "experiment_id"}); !id.empty()) return id;
  } catch (const MlflowFailure& e) {
    if (e.kind != Kind::lost || !std::string_view(e.what()).starts_with("status 404")) throw;
  }
  return member(call("POST", "experiments/create", {{"name", target_.experiment_name}}), {"experiment_id"});
}

void MlflowServer::open(const MlflowText& tags) {
  if (opened_) return;
  json answer;
  if (!run_.empty()) {
    answer = call("GET", "runs/get?run_id=" + escaped(run_), nullptr);
    if (!target_.azure) call("POST", "runs/update", {{"run_id", run_}, {"status", "RUNNING"}});
  } else {
    if (experiment_.empty()) experiment_ = experiment();
    json run{{"experiment_id", experiment_}, {"start_time", unix_ms()}, {"tags", list_of(tags)}};
    if (!target_.run_name.empty()) run["run_name"] = target_.run_name;
    if (const auto user = tags.find("mlflow.user"); user != tags.end()) run["user_id"] = user->second;
    answer = call("POST", "runs/create", run);
  }
  const std::string id = member(answer, {"run", "info", "run_id"});
  if (id.empty())
    throw MlflowFailure(Kind::busy, "the answer has no run; the address is not that of an MLflow server");
  run_ = id, artifacts_ = member(answer, {"run", "info", "artifact_uri"});
  opened_ = true;
}

void MlflowServer::log(std::span<const MlflowMetric> metrics, const MlflowText& params,
                       const MlflowText& tags) {
  json points = json::array();
  for (const MlflowMetric& m : metrics)
    points.push_back(
        {{"key", m.key}, {"value", json_number(m.value)}, {"timestamp", m.time_ms}, {"step", m.step}});
  call("POST", "runs/log-batch",
       {{"run_id", run_}, {"metrics", points}, {"params", list_of(params)}, {"tags", list_of(tags)}});
}

void MlflowServer::put(const std::string& path, const std::string& text) try {
  sent("PUT", target_.place + "/api/2.0/mlflow-artifacts/artifacts/" + escaped(path), text);
} catch (const MlflowFailure& e) {
  if (e.kind != Kind::lost) throw;
  throw MlflowFailure(Kind::refused, fmt::format("the server stores no artifacts: {}", e.what()));
}

void MlflowServer::artifact(const std::string& name, const std::string& text) {
  constexpr std::string_view kProxied = "mlflow-artifacts:", kFile = "file://";
  if (target_.azure) return;
  std::string_view place = artifacts_;
  if (place.starts_with(kProxied)) {
    place.remove_prefix(kProxied.size());
    if (place.starts_with("//")) place.remove_prefix(std::min(place.find('/', 2), place.size()));  // a host
    while (place.starts_with('/')) place.remove_prefix(1);
    return put(fmt::format("{}/{}", place, name), text);
  }
  if (place.starts_with(kFile)) place.remove_prefix(kFile.size());
  if (!place.starts_with('/'))
    throw MlflowFailure(Kind::refused,
                        fmt::format("artifacts at {} are not supported, so {} and other files are not stored",
                                    without_secrets(artifacts_), name));
  const std::filesystem::path folder(place);
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (std::ofstream file(folder / name, std::ios::binary); !(file << text && file.flush()))
    throw MlflowFailure(
        Kind::refused,
        fmt::format("{}: cannot be written on this machine, so {} is not stored", folder.string(), name));
}

void MlflowServer::finish(std::string_view status, int64_t time_ms) {
  if (!target_.azure)
    call("POST", "runs/update", {{"run_id", run_}, {"status", status}, {"end_time", time_ms}});
}

}  // namespace cleave::monitor
