#include "model/config_json.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/json.h"
#include "model/config_fields.h"
#include "model/family.h"

namespace cleave::model {
namespace {

constexpr double kMostParameters = 1e15;

double parameters_of(const ModelConfig& c) {
  const double width = double(c.width), attention = double(c.head_dim) * double(2 * c.heads + 2 * c.kv_heads);
  return double(c.layers) * width * (attention + 3 * double(c.mlp_width)) +
         double(2 * c.vocab + c.positions) * width;
}

const Family* family_called(const std::string& type, const Fields& fields) {
  std::vector<std::string> types;
  for (const Family* f : kFamilies) {
    if (f->type == type) return f;
    types.push_back(f->type);
  }
  // Suggests the type with the longest common prefix; the default is a decoder like Llama.
  const auto in_common = [&](const std::string& other) {
    return std::mismatch(type.begin(), type.end(), other.begin(), other.end()).first - type.begin();
  };
  std::string nearest = "llama";
  for (const std::string& other : types)
    if (in_common(other) >= 3 && in_common(other) > in_common(nearest)) nearest = other;
  const std::string last = types.back();
  const std::string hint = type.empty() ? "" : fmt::format(", and the nearest is {}", nearest);
  types.pop_back();
  fields.refuse("model_type", fmt::format("'{}' is not supported; supported are {} and {}{}", type,
                                          fmt::join(types, ", "), last, hint));
  return nullptr;
}

}  // namespace

ModelConfig read_config_json(const std::string& text, const std::string& origin) {
  const auto object = parse_json(text, origin, Exit::usage, "expected the config.json of a model");
  require(object.is_object(), Exit::usage, "{}: not a JSON object (expected the config.json of a model)",
          origin);
  std::vector<std::string> problems;
  const Fields fields(object, "", problems);
  ModelConfig config;
  fields.absent("quantization_config", "a quantized model");
  if (const Family* family = family_called(fields.word("model_type", ""), fields))
    config = family->read(fields);
  std::string all;
  for (const std::string& p : problems) all += "\n  " + p;
  require(problems.empty(), Exit::usage, "{}: describes an impossible model:{}", origin, all);
  const double parameters = parameters_of(config);
  require(parameters <= kMostParameters, Exit::usage,
          "{} describes a model of about {:.2g} parameters; at most {:.0g} can be planned", origin,
          parameters, kMostParameters);
  return config;
}

std::string to_config_json(const ModelConfig& config) { return config.family->write(config); }

}  // namespace cleave::model
