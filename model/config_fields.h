// Reads the fields of config.json, for the families.
#pragma once
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cleave::model {

// Fields of one object. Errors are collected, to report all of them at once. null means absent, as in
// transformers.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string prefix, std::vector<std::string>& problems)
      : object_(object), prefix_(std::move(prefix)), problems_(problems) {}

  bool has(const char* name) const { return object_.contains(name) && !object_[name].is_null(); }
  // Returns true even for null, which can mean none if an absent field means a default.
  bool says(const char* name) const { return object_.contains(name); }
  int64_t count(const char* name, int64_t most) const {
    return has(name) ? count(name, most, 0) : missing(name);
  }
  int64_t count(const char* name, int64_t most, int64_t otherwise) const {
    if (!has(name)) return otherwise;
    const nlohmann::json& v = object_[name];
    if (v.is_number_integer() && v > 0 && v <= most) return v;
    return wrong(name, fmt::format("a whole number from 1 to {}", most).c_str());
  }
  double number(const char* name, double otherwise) const {
    if (!has(name)) return otherwise;
    const nlohmann::json& v = object_[name];
    return v.is_number() && v >= 0 ? double(v) : double(wrong(name, "a number, not negative"));
  }
  double probability(const char* name, double otherwise) const {
    const double p = number(name, otherwise);
    return p < 1 ? p : double(wrong(name, "a probability, from 0 to below 1"));
  }
  double number(const char* name) const { return has(name) ? number(name, 0) : double(missing(name)); }
  bool flag(const char* name, bool otherwise) const {
    if (!has(name)) return otherwise;
    return object_[name].is_boolean() ? bool(object_[name]) : wrong(name, "true or false") != 0;
  }
  std::string word(const char* name, const char* otherwise) const {
    if (!has(name)) return otherwise;
    if (object_[name].is_string()) return object_[name];
    return wrong(name, "a string"), otherwise;
  }
  // Rejects every value but `wanted`; an absent field counts as `otherwise`.
  void only(const char* name, const nlohmann::json& wanted, const nlohmann::json& otherwise) const {
    const nlohmann::json& v = has(name) ? object_[name] : otherwise;
    if (v != wanted) refuse(name, fmt::format("{} is not supported (expected {})", v.dump(), wanted.dump()));
  }
  void absent(const char* name, const char* what) const {
    if (has(name)) refuse(name, fmt::format("{} is not supported", what));
  }
  std::vector<std::string> words(const char* name) const {
    const auto is_text = [](const nlohmann::json& v) { return v.is_string(); };
    const nlohmann::json& list = object_[name];
    if (list.is_array() && std::all_of(list.begin(), list.end(), is_text))
      return list.get<std::vector<std::string>>();
    return wrong(name, "a list of strings"), std::vector<std::string>();
  }
  // Rejects texts of a list that differ from `wanted`; an absent list is allowed.
  void only_words(const char* name, const char* wanted) const {
    if (!has(name)) return;
    for (const nlohmann::json& v : object_[name])
      if (v != wanted)
        return refuse(name, fmt::format("{} is not supported (expected \"{}\")", v.dump(), wanted));
  }
  Fields inner(const char* name) const {
    static const nlohmann::json empty = nlohmann::json::object();
    const bool object = has(name) && object_[name].is_object();
    if (has(name) && !object) wrong(name, "an object");
    return {object ? object_[name] : empty, prefix_ + name + ".", problems_};
  }
  void refuse(const char* name, const std::string& why) const {
    problems_.push_back(prefix_ + name + ": " + why);
  }

 private:
  int64_t missing(const char* name) const { return refuse(name, "missing"), 0; }
  int64_t wrong(const char* name, const char* wanted) const {
    const std::string got = object_[name].dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    return refuse(name, fmt::format("expected {}, got {}", wanted, got.substr(0, 60))), 0;
  }

  const nlohmann::json& object_;
  std::string prefix_;
  std::vector<std::string>& problems_;
};

// Limits far above all published models. Products of sizes below them cannot overflow.
inline constexpr int64_t kMostIds = (int64_t{1} << 31) - 1, kWidest = 1 << 20, kMostLayers = 10'000;

// Returns a float as the shortest decimal that reads back equal: 1e-05, not 9.99999974e-06.
inline double decimal(float x) { return std::stod(fmt::format("{}", x)); }

inline std::string text_of(const nlohmann::json& config) { return config.dump(2) + "\n"; }

}  // namespace cleave::model
