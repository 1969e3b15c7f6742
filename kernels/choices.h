// What was measured on a GPU and decided once in a process, so that all its streams decide alike, and so that
// another run can be told to: by the name of the question, what was chosen.
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
  // Two streams may measure the same at once: the first answer stays and is returned.
  std::string keep(const std::string& name, const std::string& choice);
  // What an earlier run chose stands before anything that is measured.
  void replay(const Map& earlier);
  // What was kept since the last call; nothing of what was replayed.
  Map take_new();

 private:
  mutable std::mutex mutex_;
  Map known_, fresh_;
};

}  // namespace cleave::kernels
