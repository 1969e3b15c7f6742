// Secrets of a job: what a rank knows and a stranger does not.
#pragma once
#include <string>

#include "comm/rendezvous/socket.h"

namespace cleave::comm {

// 128 random bits in hexadecimal.
std::string random_secret();

// Where ranks of one host and one user that were given no secret get the one that rank 0 made: a UNIX socket
// whose abstract name has the user and the port in it. It leaves no file, belongs to the network namespace as
// the port does, and the kernel tells each end the other's user.
class SecretDoor {
 public:
  SecretDoor() = default;
  // Makes a secret. Invalid, with errno, if another process has the name.
  static SecretDoor open(int port);
  // Asks for the secret at a port of this host. Empty, and why, if no process of this user has one.
  static std::string ask(int port, Clock::time_point deadline, std::string& why);

  explicit operator bool() const { return bool(socket_); }
  int fd() const { return socket_.fd(); }
  const std::string& secret() const { return secret_; }
  // Answers those who wait and are of this user; hangs up on others.
  void hand_out();

 private:
  Socket socket_;
  std::string secret_;
};

}  // namespace cleave::comm
