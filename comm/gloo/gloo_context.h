// Gloo's side of a group whose connections are made here. Gloo's own pairs listen by themselves and take
// whoever comes first; these are given a connection whose other end has shown the job's secret
// (comm/rendezvous/data_listener.h).
#pragma once
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>

#include "comm/rendezvous/socket.h"

namespace cleave::comm {

// Moves the data of all groups of a process: one thread that waits for its sockets. Error(usage).
std::shared_ptr<gloo::transport::tcp::Device> make_gloo_device();

class GlooContext final : public gloo::transport::tcp::Context {
 public:
  GlooContext(std::shared_ptr<gloo::transport::tcp::Device> device, int me, int ranks,
              std::chrono::milliseconds timeout);

  // Once for each other rank, before anything is sent. Throws an exception of Gloo's where the other end is
  // gone already.
  void take(int peer, Socket connection);

 private:
  gloo::transport::tcp::Device& loop_;
};

}  // namespace cleave::comm
