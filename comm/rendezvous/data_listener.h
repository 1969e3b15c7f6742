// The connections that carry data between ranks of a job. Both ends first prove that they have the secret of
// the called rank, which stands in the job's store (comm/rendezvous/handshake.h), and the caller says which
// group it is of; other callers are hung up on and keep nobody waiting (comm/rendezvous/reception.h).
#pragma once
#include <map>
#include <string>
#include <utility>

#include "comm/alarm.h"
#include "comm/rendezvous/reception.h"
#include "comm/rendezvous/socket.h"

namespace cleave::comm {

// One end of a connection that is to be made.
struct DataLink {
  std::string group;  // its key in the store
  int peer = 0;       // the other end's rank there
  std::string label;  // of the other end, for messages
};

class DataListener {
 public:
  // Listens on a numeric address of this machine, on a free port; `ranks` may call at once. Error(usage).
  explicit DataListener(const std::string& address, int ranks = 1);
  DataListener(const DataListener&) = delete;
  DataListener& operator=(const DataListener&) = delete;

  // How others reach it, for the job's store: it has the secret.
  std::string where() const;

  // The connection that the link's other end made, or is about to make; also one for another group may come
  // first, and is kept. One thread at a time. Error(rank_lost) at the deadline, or with the alarm's reason.
  Socket accept(const DataLink& link, const Alarm& alarm, Clock::time_point deadline);

 private:
  void look(Clock::time_point until);
  void take(Guest guest);

  const std::string address_, secret_;
  Reception reception_;
  std::map<std::pair<std::string, int>, Socket> came_;
};

// Connects rank `rank` to the listener that said `where`, which expects the link's other end there. A refused
// or broken connection is tried again. Error(rank_lost) at the deadline, or with the alarm's reason.
Socket connect_data(const DataLink& link, int rank, const std::string& where, const Alarm& alarm,
                    Clock::time_point deadline);

}  // namespace cleave::comm
