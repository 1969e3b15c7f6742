// Warnings of this process: on stderr, and in the outputs of a training.
#pragma once
#include <fmt/core.h>

#include <functional>
#include <string>
#include <utility>

namespace cleave {

// Prints "warning: " and the text on stderr, and passes the text to the listeners.
void print_warning(const std::string& text);
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  print_warning(fmt::format(format, std::forward<Args>(args)...));
}
// Passes a warning that its caller prints to the listeners.
void note_warning(const std::string& text);

// Receives the first 256 warnings of this process so far, and each later one on the thread that warns. No
// call is running after the destructor.
class WarningListener {
 public:
  using Take = std::function<void(const std::string& text)>;
  explicit WarningListener(Take take);
  ~WarningListener();
  WarningListener(const WarningListener&) = delete;
  WarningListener& operator=(const WarningListener&) = delete;

 private:
  Take take_;
};

}  // namespace cleave
