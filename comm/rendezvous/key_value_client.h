// A rank's side of the rendezvous: keys and values shared by all ranks of the job, over a connection that
// stays open for the rank's lifetime. Rings the alarm if the connection breaks or the server reports a lost
// rank.
#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/alarm.h"
#include "comm/rendezvous/socket.h"
#include "comm/rendezvous/wire.h"

namespace cleave::comm {

class KeyValueClient {
 public:
  struct Joined {
    std::unique_ptr<KeyValueClient> client = {};  // null: no rank of this job answers here yet, or rejected
    std::string why = {};
    bool refused = false, of_other_job = false;  // of_other_job: another job has this port
  };
  // Proves the secret to the other end, which must also prove it, and waits for its reply.
  static Joined join(Socket socket, const wire::Hello& hello, std::string_view secret,
                     std::shared_ptr<Alarm> alarm);
  ~KeyValueClient();  // disconnects; other ranks treat this as a death unless leave() was called
  KeyValueClient(const KeyValueClient&) = delete;
  KeyValueClient& operator=(const KeyValueClient&) = delete;

  void set(const std::string& key, std::string_view value);
  // Waits until the key is set; empty if the deadline passes first. Throws Error(rank_lost) if the alarm
  // rings.
  std::optional<std::string> get(const std::string& key, Clock::time_point deadline);
  // Adds to a counter key (0 if unset) and returns the sum.
  int64_t add(const std::string& key, int64_t by, Clock::time_point deadline);

  void leave();  // announces a clean exit
  // Tells all ranks why this rank ends; `explained`: as World::failed.
  void failed(const std::string& reason, bool explained = false);

 private:
  KeyValueClient(Socket socket, std::shared_ptr<Alarm> alarm);
  void listen();
  void lost(const std::string& reason, bool explained = false);
  void send(const std::string& frame);
  std::optional<std::string> await(uint64_t request, Clock::time_point deadline);

  Socket socket_, wake_;
  std::shared_ptr<Alarm> alarm_;
  std::mutex mutex_;
  std::condition_variable answered_;
  std::map<uint64_t, std::optional<std::string>> requests_;
  uint64_t next_request_ = 1;
  bool leaving_ = false;
  std::thread thread_;
};

}  // namespace cleave::comm
