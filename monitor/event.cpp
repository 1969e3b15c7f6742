#include "monitor/event.h"

#include <chrono>

namespace cleave::monitor {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace cleave::monitor
