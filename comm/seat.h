// Where one rank of a job runs, as the ranks tell each other when they meet.
#pragma once
#include <string>

namespace cleave {

struct Seat {
  std::string host;     // for people
  std::string host_id;  // equal exactly when two ranks can share memory
  std::string address;  // from which it reached the master
  int pid = 0;
};

// Of this process, which reached the master from `address`.
Seat seat_here(const std::string& address);

std::string encode(const Seat& seat);
Seat decode_seat(const std::string& bytes);  // CHECKs the form

}  // namespace cleave
