// Rank 0's side of the rendezvous: a key-value store for the ranks of one job and one attempt, and the place
// where the end of a rank is noticed, because each keeps its connection open until it says goodbye.
// Strangers, stale attempts and wrong secrets are turned away and disturb nobody
// (comm/rendezvous/reception.h); a member that stores or asks for more than any rank does is dropped, which
// ends the job.
#pragma once
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/rendezvous/reception.h"
#include "comm/rendezvous/secret.h"
#include "comm/rendezvous/socket.h"
#include "comm/rendezvous/wire.h"

namespace cleave::comm {

class KeyValueServer {
 public:
  // `self` is the hello that rank 0 itself will send: what the others must agree with. `door`: where ranks of
  // this host ask for the secret, if they were given none.
  KeyValueServer(Socket listener, wire::Hello self, std::string secret, SecretDoor door = {});
  // Serves until every rank has left or the deadline passes.
  ~KeyValueServer();
  KeyValueServer(const KeyValueServer&) = delete;
  KeyValueServer& operator=(const KeyValueServer&) = delete;

  // Sets until when the destructor waits for ranks that are still there; it does not wait at all unless this
  // is called.
  void leave_by(Clock::time_point deadline);

  std::vector<int> missing() const;           // ranks that have not come yet
  std::vector<std::string> refusals() const;  // why callers were turned away, each reason once

 private:
  struct Connection {
    Socket socket;
    int rank = -1;
    std::string in = {}, out = {};
    size_t waits = 0;  // for keys that are not set
    bool closing = false;
  };
  struct Member {
    std::string name;  // "rank 1 (pid 123 on host x)"; empty until it came
    bool left = false;
  };
  struct Wanted {
    Connection* by;
    uint64_t request;
  };

  void serve();
  void read_from(Connection& c);
  void write_to(Connection& c);
  void admit(Guest guest);
  void refuse(Guest& guest, const std::string& reason, bool of_other_job);
  struct Refusal {
    std::string reason = {};    // empty: welcome
    bool of_other_job = false;  // and told no more
  };
  Refusal refusal_of(const wire::Hello& hello) const;
  void handle_all(Connection& c);
  void handle(Connection& c, std::string_view frame);
  void set(Connection& c, const std::string& key, std::string value);
  void get(Connection& c, const std::string& key, uint64_t request);
  void answer(Connection& c, uint64_t request, const std::string& value);
  void add(Connection& c, const std::string& key, int64_t by);
  void lost(Connection& c, std::string_view how = "went away");
  void ring(const std::string& reason);
  bool all_left() const;
  void drop_closed();

  SecretDoor door_;
  Reception reception_;
  Socket wake_;
  const wire::Hello self_;

  mutable std::mutex mutex_;  // guards what other threads look at: these four
  std::vector<Member> members_;
  std::vector<std::string> refusals_;
  bool stopping_ = false;
  Clock::time_point leave_by_ = Clock::time_point::min();

  std::list<Connection> connections_;
  std::map<std::string, std::string> values_;
  size_t stored_ = 0;  // bytes of them
  std::map<std::string, std::vector<Wanted>> wanted_;
  std::string alarm_;
  std::thread thread_;
};

}  // namespace cleave::comm
