// Process and host of a rank, which ranks exchange when they meet.
#pragma once
#include <cstdint>
#include <string>

namespace cleave::comm {

struct RankProcess {
  std::string host;     // name for users
  std::string host_id;  // host_id() of the rank
  std::string address;  // its end of the connection to the master
  int pid = 0;
  int transport = 0;  // the TransportChoice of the rank
};

// Equal on exactly those ranks that can share memory: same kernel, host name, PID and network namespaces. The
// only test of whether two ranks are on one host; host_number() is the same as a number, for ranks to
// exchange.
std::string host_id();
int64_t host_number();

// Describes this process; `address` is its end of the connection to the master.
RankProcess this_process(const std::string& address);

std::string encode(const RankProcess& process);
RankProcess decode_rank_process(const std::string& bytes);  // throws if malformed

}  // namespace cleave::comm
