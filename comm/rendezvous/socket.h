// TCP sockets of the rendezvous: what the system calls want, without their ceremony.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/order.h"

namespace cleave::comm {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();
  void close();

  // False when the peer is gone or the deadline passed; whole or nothing otherwise.
  bool send_all(std::string_view bytes, Clock::time_point deadline);
  bool recv_all(void* data, size_t bytes, Clock::time_point deadline);

 private:
  int fd_ = -1;
};

// Waits for events (POLLIN, ...) on one descriptor; false on the deadline.
bool wait_for(int fd, short events, Clock::time_point deadline);

// Listens on a numeric address of this machine, or on all of them, IPv6 and IPv4, where it is empty; port 0
// takes a free one. An invalid socket with errno set when the port is taken or the address is not this
// machine's.
Socket listen_on(int port, const std::string& address = "");
// The two halves of that. Nobody else gets a port that was taken, but a later listen_on() of it succeeds.
Socket reserve_port(int port, const std::string& address = "");
bool start_listening(Socket& socket);  // else invalid, with errno set
int port_of(const Socket& socket);
// The port that a connection goes to, where that is on this machine; else 0.
int port_here(const Socket& connection);

// The numeric address of this end or the other end of a connection, or of this machine on the way to a
// numeric address; empty where there is none.
std::string own_address(const Socket& connection);
std::string peer_address(const Socket& connection);
std::string address_towards(const std::string& address);

// One attempt; the name is resolved anew. An invalid socket, and why, when it fails.
Socket connect_to(const std::string& host, int port, Clock::time_point deadline, std::string& why);

// Small messages leave at once, and a peer whose machine vanished is noticed.
void tune(const Socket& socket);

// The address of this machine for itself: "127.0.0.1", or "::1" where its loopback has IPv6 only.
const std::string& loopback();

// Why a port cannot be had, of errno: who has it, or what the system says and what to do.
std::string problem_of_port(int port, int error);
// "python3 (pid 4711)", or "another program" when it cannot be told: who listens on a port of this machine.
std::string owner_of_port(int port);

}  // namespace cleave::comm
