// Where one rank of a job runs, as the ranks tell each other when they meet.
#pragma once
#include <cstdint>
#include <string>

namespace cleave::comm {

struct RankProcess {
  std::string host;     // for people
  std::string host_id;  // host_id() of the rank
  std::string address;  // from which it reached the master
  int pid = 0;
  int transport = 0;  // the TransportChoice of the rank
};

// Equal exactly on ranks that can share memory: the same kernel, host name, and namespaces of processes and
// networks. It is the one answer to whether two ranks are on one host; host_number() is it as a number, for
// ranks to exchange.
std::string host_id();
int64_t host_number();

// Describes this process, which reached the master from `address`.
RankProcess this_process(const std::string& address);

std::string encode(const RankProcess& process);
RankProcess decode_rank_process(const std::string& bytes);  // CHECKs the form

}  // namespace cleave::comm
