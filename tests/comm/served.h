// A job's store on a free port, and clients of it.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "comm/rendezvous/key_value_client.h"
#include "comm/rendezvous/key_value_server.h"
#include "comm/rendezvous/socket.h"
#include "tests/comm/collectives.h"

namespace cleave::comm::test {

inline comm::wire::Hello hello_of(int rank, int world = 2) {
  return {.job_id = "test", .attempt = 0, .world = world, .rank = rank, .host = "host-a", .pid = 100 + rank};
}

inline constexpr const char* kSecret = "secret";

struct Served {
  explicit Served(int world = 2)
      : socket(comm::listen_on(0)),
        port(comm::port_of(socket)),
        server(std::move(socket), at_port(hello_of(0, world)), kSecret) {}
  comm::wire::Hello at_port(comm::wire::Hello hello) const {
    if (!hello.port) hello.port = port;
    return hello;
  }
  std::unique_ptr<comm::KeyValueClient> join(const comm::wire::Hello& hello) { return call(hello).client; }
  comm::KeyValueClient::Joined call(const comm::wire::Hello& hello, const std::string& secret = kSecret) {
    std::string why;
    comm::Socket s = comm::connect_to("127.0.0.1", port, comm::Clock::now() + std::chrono::seconds(5), why);
    EXPECT_TRUE(s) << why;
    return comm::KeyValueClient::join(std::move(s), at_port(hello), secret, alarm);
  }
  std::string refusal(const comm::wire::Hello& hello, const std::string& secret = kSecret) {
    const comm::KeyValueClient::Joined joined = call(hello, secret);
    EXPECT_TRUE(joined.refused && !joined.client);
    return joined.why;
  }
  comm::Socket socket;
  int port;
  std::shared_ptr<comm::Alarm> alarm = std::make_shared<comm::Alarm>();
  comm::KeyValueServer server;
};

}  // namespace cleave::comm::test
