// Connections for data between ranks of a job. Both ends first prove that they have the secret of the called
// rank, which is in the job's store (comm/rendezvous/handshake.h), and the caller names its group. Other
// callers are disconnected and delay no rank (comm/rendezvous/reception.h).
#pragma once
#include <map>
#include <string>
#include <utility>

#include "comm/alarm.h"
#include "comm/rendezvous/reception.h"
#include "comm/rendezvous/socket.h"

namespace cleave::comm {

// One end of a future connection.
struct DataLink {
  std::string group;  // its key in the store
  int peer = 0;       // rank of the other end in the group
  std::string label;  // of the other end, for messages
};

class DataListener {
 public:
  // Listens on a numeric address of this machine, on a free port, for `ranks` simultaneous callers. Throws
  // Error(usage).
  explicit DataListener(const std::string& address, int ranks = 1);
  DataListener(const DataListener&) = delete;
  DataListener& operator=(const DataListener&) = delete;

  // Address for the job's store; contains the secret.
  std::string where() const;

  // Returns the connection from the link's other end. Connections for other groups may come first and are
  // kept. One thread at a time. Throws Error(rank_lost) at the deadline, or with the alarm's reason.
  Socket accept(const DataLink& link, const Alarm& alarm, Clock::time_point deadline);

 private:
  void look(Clock::time_point until);
  void take(Guest guest);

  const std::string address_, secret_;
  Reception reception_;
  std::map<std::pair<std::string, int>, Socket> came_;
};

// Connects rank `rank` to the listener at `where`, which expects the link's other end there. Retries failed
// connections. Throws Error(rank_lost) at the deadline, or with the alarm's reason.
Socket connect_data(const DataLink& link, int rank, const std::string& where, const Alarm& alarm,
                    Clock::time_point deadline);

}  // namespace cleave::comm
