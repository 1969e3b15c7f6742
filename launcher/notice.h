// Watches for notices that this host is about to be taken away: a file that an operator or a scheduler
// creates, and Azure's scheduled events (learn.microsoft.com/azure/virtual-machines/linux/scheduled-events).
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "launcher/discovery.h"

namespace cleave::launcher {

struct NoticeSources {
  std::string file = {};      // CLEAVE_NOTICE_FILE
  std::string metadata = {};  // address of Azure's instance metadata; empty: not on Azure
  bool any() const { return !file.empty() || !metadata.empty(); }
};
// CLEAVE_SCHEDULED_EVENTS replaces the address, or is `off`. Throws Error(usage) for other values.
NoticeSources notice_sources(const Environment& env);

// Returns the first event of the answer that ends or restarts the machine ("Azure will preempt this host at
// Mon, 19 Sep 2022 18:29:47 GMT"). Events of other machines do not count, unless `machine` is empty; answers
// in another form contain none.
std::optional<std::string> event_in(std::string_view answer, const std::string& machine);

class NoticeWatch {
 public:
  // Calls `noticed` once, on another thread. A library that is missing for events is a warning.
  NoticeWatch(NoticeSources sources, std::function<void(const std::string& notice)> noticed,
              std::chrono::milliseconds every = std::chrono::seconds(2));
  ~NoticeWatch();
  NoticeWatch(const NoticeWatch&) = delete;
  NoticeWatch& operator=(const NoticeWatch&) = delete;

 private:
  void watch();

  const NoticeSources sources_;
  const std::function<void(const std::string&)> noticed_;
  const std::chrono::milliseconds every_;
  std::mutex mutex_;
  std::condition_variable end_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace cleave::launcher
