// Broken copies of files: bytes that are changed, left out, repeated and cut off, and JSON whose values are.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <random>
#include <string>

namespace cleave {

class Mutation {
 public:
  explicit Mutation(uint64_t seed) : random_(seed) {}

  // A broken copy. Of JSON two in three are JSON again.
  std::string of(const std::string& good);
  uint64_t pick(uint64_t below) { return random_() % below; }

 private:
  std::string bytes(std::string text);
  void value(nlohmann::json& at);

  std::mt19937_64 random_;
};

}  // namespace cleave
