// Broken copies of files: bytes are changed, left out, repeated or cut off, and values in JSON are
// changed.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <random>
#include <string>

namespace cleave {

class Mutation {
 public:
  explicit Mutation(uint64_t seed) : random_(seed) {}

  // Returns a broken copy. Two of three copies of JSON are valid JSON.
  std::string of(const std::string& good);
  uint64_t pick(uint64_t below) { return random_() % below; }

 private:
  std::string bytes(std::string text);
  void value(nlohmann::json& at);

  std::mt19937_64 random_;
};

}  // namespace cleave
