// Job secrets, which distinguish ranks from strangers.
#pragma once
#include <string>

#include "comm/rendezvous/socket.h"

namespace cleave::comm {

// 128 random bits in hexadecimal.
std::string random_secret();

// Distributes rank 0's generated secret to ranks of the same host and user that have none: a UNIX socket with
// an abstract name that contains user and port. It leaves no file and belongs to the network namespace, as
// the port does; the kernel tells each end the other's user.
class SecretDoor {
 public:
  SecretDoor() = default;
  // Generates a secret. Invalid, with errno, if another process has the name.
  static SecretDoor open(int port);
  // Asks for the secret at a port of this host. On failure, returns an empty string and sets `why`.
  static std::string ask(int port, Clock::time_point deadline, std::string& why);

  explicit operator bool() const { return bool(socket_); }
  int fd() const { return socket_.fd(); }
  const std::string& secret() const { return secret_; }
  // Answers waiting processes of this user; disconnects others.
  void hand_out();

 private:
  Socket socket_;
  std::string secret_;
};

}  // namespace cleave::comm
