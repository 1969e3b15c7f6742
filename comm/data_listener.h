// The connections that carry data between ranks of a job. A caller first shows the secret of the rank that it
// calls, which it read in the job's store, and says which group it is of; whoever shows none is hung up on
// and keeps nobody waiting.
#pragma once
#include <list>
#include <map>
#include <string>
#include <utility>

#include "comm/alarm.h"
#include "comm/socket.h"

namespace cleave::comm {

// One end of a connection that is to be made.
struct DataLink {
  std::string group;  // its key in the store
  int peer = 0;       // the other end's rank there
  std::string label;  // of the other end, for messages
};

class DataListener {
 public:
  // Listens on a numeric address of this machine, on a free port. Error(usage).
  explicit DataListener(const std::string& address);
  DataListener(const DataListener&) = delete;
  DataListener& operator=(const DataListener&) = delete;

  // How others reach it, for the job's store: it has the secret.
  std::string where() const;

  // The connection that the link's other end made, or is about to make; also one for another group may come
  // first, and is kept. One thread at a time. Error(rank_lost) at the deadline, or with the alarm's reason.
  Socket accept(const DataLink& link, const Alarm& alarm, Clock::time_point deadline);

 private:
  struct Caller {
    Socket socket;
    std::string in;  // what it has said
    Clock::time_point since = Clock::now();
  };

  void look(Clock::time_point until);
  bool hear(Caller& caller);  // false: done with it

  const std::string address_, secret_;
  Socket listener_;
  std::list<Caller> strangers_;
  std::map<std::pair<std::string, int>, Socket> came_;
};

// Connects rank `rank` to the listener that said `where`, which expects the link's other end there. A refused
// or broken connection is tried again. Error(rank_lost) at the deadline, or with the alarm's reason.
Socket connect_data(const DataLink& link, int rank, const std::string& where, const Alarm& alarm,
                    Clock::time_point deadline);

}  // namespace cleave::comm
