#include "app/work_progress.h"

#include <unistd.h>

#include <cstdio>

#include "monitor/progress.h"

namespace cleave::app {

bool WorkProgress::on_terminal() { return isatty(STDERR_FILENO) != 0; }

WorkProgress::~WorkProgress() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void WorkProgress::at(double share, const std::function<std::string(double seconds)>& says) {
  const Clock::time_point now = Clock::now();
  if (!shown_ || now - said_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(5))) return;
  said_ = now;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  std::fprintf(stderr, "%s%s, %s left%s", terminal_ ? "\r\x1b[K" : "", says(seconds).c_str(),
               monitor::format_duration(share > 0 ? seconds / share * (1 - share) : -1).c_str(),
               terminal_ ? "" : "\n");
  std::fflush(stderr);
  drawn_ = terminal_;
}

}  // namespace cleave::app
