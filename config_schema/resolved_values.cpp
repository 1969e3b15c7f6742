#include "config_schema/resolved_values.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/secrets.h"

namespace cleave::config {
namespace {

template <class Json>
void mask(Json& values) {
  if (values.is_object())
    for (auto& [key, value] : values.items())
      if (value.is_string() && is_secret(key))
        value = "masked";
      else
        mask(value);
  else if (values.is_array())
    for (Json& value : values) mask(value);
  else if (values.is_string())
    values = without_secrets(values.template get<std::string>());
}

}  // namespace

nlohmann::json resolved_values(const ReadResult& read) {
  nlohmann::json values = nlohmann::json::object();
  for (const Note& n : read.notes) {
    if (n.path.empty()) continue;
    nlohmann::json value = nlohmann::json::parse(n.value, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) value = n.value;
    values[n.key.empty() ? n.path : n.key] = std::move(value);
  }
  mask(values);
  return values;
}

std::string shared_text(const ReadResult& read) {
  auto values = nlohmann::ordered_json::parse(read.text, nullptr, /*allow_exceptions=*/false, true);
  if (values.is_discarded()) return resolved_values(read).dump(2);
  mask(values);
  return values.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace cleave::config
