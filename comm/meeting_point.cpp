#include "comm/meeting_point.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "core/error.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;

constexpr int kPortsNearAgent = 16;

// A port with what the others need to know of it, in place before anybody can call. Empty, with errno, where
// it is taken.
MeetingPlace place_at(const MeetingPoint& point, int port, bool needs_secret) {
  MeetingPlace place;
  place.call = point.address.empty() ? loopback() : point.address;
  place.listener = reserve_port(port, point.address);
  if (!place.listener && errno == EADDRNOTAVAIL) {  // it is translated on the way here
    place.call = loopback();
    place.listener = reserve_port(port);
  }
  if (place.listener && needs_secret && point.on_one_host) place.secret = HostSecret::make(port);
  start_listening(place.listener);
  return place;
}

}  // namespace

MeetingPoint meeting_point(const std::string& master_addr) {
  if (master_addr == "localhost")
    return {loopback(), loopback(), true};  // a bare container may not resolve it
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, master_addr.c_str(), &v4) == 1)
    return {master_addr, master_addr, ntohl(v4.s_addr) >> 24 == 127};
  if (inet_pton(AF_INET6, master_addr.c_str(), &v6) == 1)
    return {master_addr, master_addr, bool(IN6_IS_ADDR_LOOPBACK(&v6))};
  return {master_addr, "", false};
}

std::vector<int> ports_to_try(const RankInfo& info) {
  if (!info.port_is_taken) return {info.master_port};
  std::vector<int> ports;
  for (int i = 0; i < kPortsNearAgent; ++i) ports.push_back(info.master_port + 1 + info.attempt % 64 + i);
  return ports;
}

MeetingPlace meeting_place(const RankInfo& info, const ConnectOptions& options) {
  const MeetingPoint point = meeting_point(info.master_addr);
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
            "rank 0 cannot listen on port {}: {} listens there. End it, or choose another MASTER_PORT", port,
            owner_of_port(port));
    std::this_thread::sleep_for(100ms);
  }
}

}  // namespace cleave::comm
