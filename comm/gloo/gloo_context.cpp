#include "comm/gloo/gloo_context.h"

#include <gloo/transport/tcp/pair.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <utility>

#include "core/error.h"

namespace cleave::comm {
namespace {

namespace tcp = gloo::transport::tcp;

class GivenPair final : public tcp::Pair {
 public:
  GivenPair(tcp::Context* context, tcp::Device* device, int rank, std::chrono::milliseconds timeout)
      : Pair(context, device, rank, timeout) {
    std::lock_guard lock(m_);
    if (fd_ >= 0) {  // socket on which this version of Gloo would listen for the other end
      device_->unregisterDescriptor(fd_, this);
      ::close(std::exchange(fd_, -1));
    }
    state_ = INITIALIZING;
  }

  void take(Socket connection) {
    std::lock_guard lock(m_);
    self_ = tcp::Address::fromSockName(connection.fd());
    peer_ = tcp::Address::fromPeerName(connection.fd());
    fd_ = connection.release();
    changeState(CONNECTED);
    device_->registerDescriptor(fd_, EPOLLIN, this);
  }
};

}  // namespace

std::shared_ptr<tcp::Device> make_gloo_device() {
  tcp::attr attributes;
  attributes.hostname = loopback();  // pairs listen here until they get a connection
  try {
    return std::dynamic_pointer_cast<tcp::Device>(tcp::CreateDevice(attributes));
  } catch (const gloo::Exception& e) {
    fail(Exit::usage, "gloo cannot start on this machine: {}", e.what());
  }
}

GlooContext::GlooContext(std::shared_ptr<tcp::Device> device, int me, int ranks,
                         std::chrono::milliseconds timeout)
    : tcp::Context(device, me, ranks), loop_(*device) {
  setTimeout(timeout);
}

void GlooContext::take(int peer, Socket connection) {
  auto pair = std::make_unique<GivenPair>(this, &loop_, peer, getTimeout());
  pair->take(std::move(connection));
  pairs_[size_t(peer)] = std::move(pair);
}

}  // namespace cleave::comm
