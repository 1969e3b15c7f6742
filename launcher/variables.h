// Environment variables for rules of discovery, and default ports of launchers.
#pragma once
#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "launcher/discovery.h"

namespace cleave::launcher {

inline constexpr int kDefaultPort = 29500;  // torch default
inline constexpr int kAzurePort = 6105;     // Azure ML documentation

// An empty variable counts as missing. Throws Error(usage) if a value is not a number.
class Variables {
 public:
  explicit Variables(const Environment& env) : env_(env) {}

  bool has(const std::string& name) const { return env_.count(name) && !env_.at(name).empty(); }
  std::string text(const std::string& name) const { return has(name) ? env_.at(name) : std::string(); }

  int number(const std::string& name) const {
    const std::string value = text(name);
    int n = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
    require(error == std::errc() && end == value.data() + value.size() && n >= 0, Exit::usage,
            "{}='{}' is not a number", name, value);
    return n;
  }
  int number(const std::string& name, int otherwise) const { return has(name) ? number(name) : otherwise; }

  std::vector<std::string> missing(const std::vector<std::string>& names) const {
    std::vector<std::string> list;
    std::copy_if(names.begin(), names.end(), std::back_inserter(list), [&](auto& n) { return !has(n); });
    return list;
  }

 private:
  const Environment& env_;
};

// A rule of discovery: empty if its launcher did not start this process.
using Rule = std::optional<comm::RankInfo> (*)(const Variables& v);

// Port that all ranks of a job derive equally, with different ports for two jobs on one host.
inline int port_from(const std::string& job) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (char c : job) hash = (hash ^ uint8_t(c)) * 16777619u;
  return 20000 + int(hash % 12000);  // below the kernel's range of ephemeral ports
}

}  // namespace cleave::launcher
