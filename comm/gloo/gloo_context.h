// Gloo context with connections that Cleave makes. Gloo's pairs would listen and accept the first caller;
// here, each pair gets a connection with an authenticated peer (comm/rendezvous/data_listener.h).
#pragma once
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>

#include "comm/rendezvous/socket.h"

namespace cleave::comm {

// Creates the I/O device of all groups of a process: one thread waits for its sockets. Throws Error(usage).
std::shared_ptr<gloo::transport::tcp::Device> make_gloo_device();

class GlooContext final : public gloo::transport::tcp::Context {
 public:
  GlooContext(std::shared_ptr<gloo::transport::tcp::Device> device, int me, int ranks,
              std::chrono::milliseconds timeout);

  // Call once per other rank, before any send. Throws a Gloo exception if the peer is already gone.
  void take(int peer, Socket connection);

 private:
  gloo::transport::tcp::Device& loop_;
};

}  // namespace cleave::comm
