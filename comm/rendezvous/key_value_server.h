// Rank 0's side of the rendezvous: a key-value store for the ranks of one job and attempt. Also detects the
// end of a rank, because each rank keeps its connection open until it leaves. Rejects strangers, stale
// attempts and wrong secrets without delaying members (comm/rendezvous/reception.h). Drops a member that
// stores or requests more than any rank does, which ends the job.
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
  // `self` is the hello that rank 0 sends; the others must agree with it. `door`: provides the secret to
  // ranks of this host that have none.
  KeyValueServer(Socket listener, wire::Hello self, std::string secret, SecretDoor door = {});
  // Serves until every rank has left or the deadline passes.
  ~KeyValueServer();
  KeyValueServer(const KeyValueServer&) = delete;
  KeyValueServer& operator=(const KeyValueServer&) = delete;

  // Sets the deadline until which the destructor waits for remaining ranks. Without this call, it does not
  // wait.
  void leave_by(Clock::time_point deadline);

  std::vector<int> missing() const;           // ranks that have not joined yet
  std::vector<std::string> refusals() const;  // distinct reasons for rejected callers

 private:
  struct Connection {
    Socket socket;
    int rank = -1;
    std::string in = {}, out = {};
    size_t waits = 0;  // number of unanswered get()
    bool closing = false;
  };
  struct Member {
    std::string name;  // "rank 1 (pid 123 on host x)"; empty before it joins
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
    bool of_other_job = false;  // the caller learns no more than this
  };
  Refusal refusal_of(const wire::Hello& hello) const;
  void handle_all(Connection& c);
  void handle(Connection& c, std::string_view frame);
  void set(Connection& c, const std::string& key, std::string value);
  void get(Connection& c, const std::string& key, uint64_t request);
  void answer(Connection& c, uint64_t request, const std::string& value);
  void add(Connection& c, const std::string& key, int64_t by);
  void lost(Connection& c, std::string_view how = "went away");
  void ring(const std::string& reason, bool explained = false);
  bool all_left() const;
  void drop_closed();

  SecretDoor door_;
  Reception reception_;
  Socket wake_;
  const wire::Hello self_;

  mutable std::mutex mutex_;  // guards the next four members
  std::vector<Member> members_;
  std::vector<std::string> refusals_;
  bool stopping_ = false;
  Clock::time_point leave_by_ = Clock::time_point::min();

  std::list<Connection> connections_;
  std::map<std::string, std::string> values_;
  size_t stored_ = 0;  // bytes of keys and values
  std::map<std::string, std::vector<Wanted>> wanted_;
  std::string alarm_;
  std::thread thread_;
};

}  // namespace cleave::comm
