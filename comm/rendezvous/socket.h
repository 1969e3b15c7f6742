// TCP sockets of the rendezvous.
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

  // All or nothing; false if the peer is gone or the deadline passed.
  bool send_all(std::string_view bytes, Clock::time_point deadline);
  bool recv_all(void* data, size_t bytes, Clock::time_point deadline);

 private:
  int fd_ = -1;
};

// Waits for events (POLLIN, ...) on one descriptor; false at the deadline.
bool wait_for(int fd, short events, Clock::time_point deadline);

// Listens on a numeric address of this machine, or on all IPv6 and IPv4 addresses if empty; port 0 selects a
// free port. Returns an invalid socket and sets errno if the port is in use or the address does not belong to
// this machine.
Socket listen_on(int port, const std::string& address = "");
// The two steps of listen_on(). No other process can take a reserved port, but a later listen_on() of it
// succeeds.
Socket reserve_port(int port, const std::string& address = "");
bool start_listening(Socket& socket);  // on failure, invalidates the socket and sets errno
int port_of(const Socket& socket);
// Destination port of a connection to this machine; otherwise 0.
int port_here(const Socket& connection);

// Numeric address of this end or the other end of a connection, or of this machine on the route to a numeric
// address; empty on failure.
std::string own_address(const Socket& connection);
std::string peer_address(const Socket& connection);
std::string address_towards(const std::string& address);

// One attempt, including name resolution. On failure, returns an invalid socket and sets `why`.
Socket connect_to(const std::string& host, int port, Clock::time_point deadline, std::string& why);

// Disables Nagle's algorithm and enables keep-alive, so that a vanished machine is detected.
void tune(const Socket& socket);

// Loopback address: "127.0.0.1", or "::1" if the loopback is IPv6 only.
const std::string& loopback();

// Describes the errno of a failed port: its owner, or the system's error with a fix.
std::string problem_of_port(int port, int error);
// Process that listens on a port of this machine: "python3 (pid 4711)", or "another program" if unknown.
std::string owner_of_port(int port);

}  // namespace cleave::comm
