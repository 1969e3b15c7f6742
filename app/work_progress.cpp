#include "app/work_progress.h"

#include <unistd.h>

#include <cstdio>

#include "monitor/progress.h"

namespace cleave {

WorkProgress::WorkProgress(std::string before, std::string behind, bool shown)
    : before_(std::move(before)),
      behind_(std::move(behind)),
      shown_(shown),
      terminal_(isatty(STDERR_FILENO) != 0) {}

WorkProgress::~WorkProgress() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void WorkProgress::at(int64_t done, int64_t all) {
  const Clock::time_point now = Clock::now();
  if (!shown_ || now - said_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(5))) return;
  said_ = now;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  std::fprintf(stderr, "%s%s %lld of %lld %s, %s left%s", terminal_ ? "\r\x1b[K" : "", before_.c_str(),
               static_cast<long long>(done), static_cast<long long>(all), behind_.c_str(),
               format_duration(done > 0 ? seconds / double(done) * double(all - done) : -1).c_str(),
               terminal_ ? "" : "\n");
  std::fflush(stderr);
  drawn_ = terminal_;
}

}  // namespace cleave
