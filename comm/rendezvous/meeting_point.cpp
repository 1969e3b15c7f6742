#include "comm/rendezvous/meeting_point.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "core/error.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;

constexpr int kPortsNearAgent = 16;

// Reserves a port together with its secret door before any process can call. If the port is in use, returns
// an empty result and sets errno.
MeetingPlace place_at(const MeetingPoint& point, int port, bool needs_secret) {
  MeetingPlace place;
  place.call = point.address.empty() ? loopback() : point.address;
  place.listener = reserve_port(port, point.address);
  if (!place.listener && errno == EADDRNOTAVAIL) {  // address translation in front of this host
    place.call = loopback();
    place.listener = reserve_port(port);
  }
  if (place.listener && needs_secret && point.on_one_host) {
    place.door = SecretDoor::open(port_of(place.listener));
    if (!place.door) place.listener = {};
  }
  start_listening(place.listener);
  return place;
}

std::vector<int> ports_to_try(const RankInfo& info) {
  if (!info.port_is_taken) return {info.master_port};
  std::vector<int> ports;
  for (int i = 0; i < kPortsNearAgent; ++i) ports.push_back(info.master_port + 1 + info.attempt % 64 + i);
  return ports;
}

}  // namespace

MeetingPoint meeting_point(const std::string& master_addr) {
  if (master_addr == "localhost")
    return {loopback(), loopback(), true};  // minimal containers may not resolve "localhost"
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, master_addr.c_str(), &v4) == 1)
    return {master_addr, master_addr, ntohl(v4.s_addr) >> 24 == 127};
  if (inet_pton(AF_INET6, master_addr.c_str(), &v6) == 1)
    return {master_addr, master_addr, bool(IN6_IS_ADDR_LOOPBACK(&v6))};
  return {master_addr, "", false};
}

std::vector<int> ports_to_call(const RankInfo& info) {
  std::vector<int> ports = ports_to_try(info);
  if (info.meeting_port && info.meeting_port != ports.front()) ports.insert(ports.begin(), info.meeting_port);
  return ports;
}

Socket listen_at(const MeetingPoint& point, int port) { return place_at(point, port, false).listener; }

Socket inherited_listener(int fd, int port) {
  const auto option = [fd](int name) {
    int value = -1;
    socklen_t bytes = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, name, &value, &bytes) == 0 ? value : -1;
  };
  const int family = option(SO_DOMAIN);
  if ((family != AF_INET && family != AF_INET6) || option(SO_TYPE) != SOCK_STREAM ||
      option(SO_ACCEPTCONN) != 1)
    return {};
  Socket socket(fd);
  if (port_of(socket) == port && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 &&
      fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0)
    return socket;
  socket.release();  // belongs to another program
  return {};
}

MeetingPlace meeting_place(const RankInfo& info, const ConnectOptions& options) {
  const MeetingPoint point = meeting_point(info.master_addr);
  if (Socket given = inherited_listener(info.meeting_fd, info.meeting_port); given && !info.token.empty()) {
    const std::string call = point.address.empty() ? loopback() : own_address(given);
    return {std::move(given), call, {}};
  }
  const auto deadline = Clock::now() + std::min(options.port_timeout, options.rendezvous_timeout);
  for (;;) {
    int error = 0;
    for (int port : ports_to_try(info)) {
      MeetingPlace place = place_at(point, port, info.token.empty());
      if (place.listener) return place;
      error = errno;
    }
    const int port = ports_to_try(info).front();
    if (error != EADDRINUSE)
      fail(Exit::usage, "rank 0 cannot listen on port {}: {}", port, problem_of_port(port, error));
    require(Clock::now() < deadline, Exit::usage,
            "rank 0 cannot listen on port {}: {} listens there; end it, or choose another MASTER_PORT", port,
            owner_of_port(port));
    std::this_thread::sleep_for(100ms);
  }
}

}  // namespace cleave::comm
