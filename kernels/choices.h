// Algorithm choices measured on a GPU, made once per process, so that all streams decide alike and another
// run can replay them. Maps the name of a decision to the chosen value.
#pragma once
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace cleave::kernels {

class Choices {
 public:
  using Map = std::map<std::string, std::string>;

  static Choices& of_process();

  std::optional<std::string> find(const std::string& name) const;
  // Stores and returns the choice. If two streams measure at the same time, the first choice stays and is
  // returned.
  std::string keep(const std::string& name, const std::string& choice);
  // Presets the choices of an earlier run; these are not measured again.
  void replay(const Map& earlier);
  // Choices stored since the last call, without replayed ones.
  Map take_new();

 private:
  mutable std::mutex mutex_;
  Map known_, fresh_;
};

}  // namespace cleave::kernels
