// A rank's side of the rendezvous: keys and values that all ranks of the job share, over a connection that
// stays open as long as the rank lives. If it breaks, or the server says that a rank is lost, the alarm
// rings.
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
    std::unique_ptr<KeyValueClient> client = {};  // null: nobody of ours answers here yet, or a refusal
    std::string why = {};
    bool refused = false, of_other_job = false;  // another job has this port
  };
  // Proves the secret to the other end, which has to prove it, too, and waits for its word.
  static Joined join(Socket socket, const wire::Hello& hello, std::string_view secret,
                     std::shared_ptr<Alarm> alarm);
  ~KeyValueClient();  // hangs up, which the others take for a death unless leave() was called
  KeyValueClient(const KeyValueClient&) = delete;
  KeyValueClient& operator=(const KeyValueClient&) = delete;

  void set(const std::string& key, std::string_view value);
  // Waits until the key is set; nothing when the deadline passes first. Error(rank_lost) when the alarm
  // rings.
  std::optional<std::string> get(const std::string& key, Clock::time_point deadline);
  // Adds to a key that counts (0 if unset) and returns the sum.
  int64_t add(const std::string& key, int64_t by, Clock::time_point deadline);

  void leave();                            // a proper goodbye
  void failed(const std::string& reason);  // tells everybody why this rank ends

 private:
  KeyValueClient(Socket socket, std::shared_ptr<Alarm> alarm);
  void listen();
  void lost(const std::string& reason);
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
