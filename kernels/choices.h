// Algorithm choices measured on a GPU, made once per process, so that all streams decide alike and another
// run can replay them. Maps the name of a decision to the chosen value. Processes of a user share their
// choices in a file.
#pragma once
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kernels/choice_file.h"

namespace cleave::kernels {

class Choices {
 public:
  using Map = std::map<std::string, std::string>;

  static Choices& of_process();

  Choices() = default;
  explicit Choices(ChoiceFile file) : file_(std::move(file)) {}

  // The choice of this process, an earlier run's, or one that another process has added to the file
  // meanwhile.
  std::optional<std::string> find(const std::string& name);
  // Stores and returns the choice. If two streams measure at the same time, the first choice stays and is
  // returned. Only a `measured` choice goes to the file.
  enum class Reason { measured, no_space };
  std::string keep(const std::string& name, const std::string& choice, Reason reason = Reason::measured);
  // Presets the choices of an earlier run; these are not measured again.
  void replay(const Map& earlier);
  // Choices stored or found in the file since the last call, without replayed ones.
  Map take_new();

 private:
  std::mutex mutex_;
  Map known_, fresh_, in_file_;
  ChoiceFile file_;
};

}  // namespace cleave::kernels
