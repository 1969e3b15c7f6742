#include "comm/rendezvous/secret.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "core/error.h"

namespace cleave::comm {
namespace {

constexpr size_t kDigits = 32;
constexpr int kAnsweredAtOnce = 64;  // answers per turn

Socket new_socket() { return Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

struct Name {
  explicit Name(int port) {
    const std::string text = fmt::format("cleave-{}-{}", geteuid(), port);
    address.sun_family = AF_UNIX;  // a name that starts with a 0 byte is abstract
    std::memcpy(address.sun_path + 1, text.data(), text.size());
    bytes = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t bytes = 0;
};

// True for the UID that represents all users that are unknown to this user namespace.
bool stands_for_others(uid_t user) {
  uint64_t overflow = 65534, inside = 0, outside = 0, count = 0;
  std::ifstream("/proc/sys/kernel/overflowuid") >> overflow;
  std::ifstream("/proc/self/uid_map") >> inside >> outside >> count;
  return user == overflow && count < UINT32_MAX;
}

bool is_of_this_user(const Socket& connection) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return getsockopt(connection.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid() &&
         !stands_for_others(peer.uid);
}

}  // namespace

std::string random_secret() {
  uint64_t number[2] = {};
  require(getrandom(number, sizeof(number), 0) == ssize_t(sizeof(number)), Exit::internal,
          "getrandom failed");
  return fmt::format("{:016x}{:016x}", number[0], number[1]);
}

SecretDoor SecretDoor::open(int port) {
  SecretDoor door;
  const Name name(port);
  door.socket_ = new_socket();
  if (!door.socket_ || bind(door.fd(), name.raw(), name.bytes) != 0) {
    const int error = errno;
    door.socket_.close();
    errno = error;
    return door;
  }
  start_listening(door.socket_);
  door.secret_ = random_secret();
  return door;
}

void SecretDoor::hand_out() {
  for (int i = 0; i < kAnsweredAtOnce; ++i) {
    Socket caller(accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!caller) return;
    if (is_of_this_user(caller)) caller.send_all(secret_, Clock::now());
  }
}

std::string SecretDoor::ask(int port, Clock::time_point deadline, std::string& why) {
  constexpr const char* kDo = "set CLEAVE_TOKEN to the same random word for all ranks";
  const Name name(port);
  Socket socket = new_socket();
  if (!socket || connect(socket.fd(), name.raw(), name.bytes) != 0) {
    why = fmt::format("no process of this user and network offers the secret for port {} ({}); {}", port,
                      std::strerror(errno), kDo);
    return {};
  }
  std::string secret(kDigits, 0);
  if (is_of_this_user(socket) && socket.recv_all(secret.data(), kDigits, deadline)) return secret;
  why = fmt::format("the process that offers the secret for port {} belongs to another user; {}", port, kDo);
  return {};
}

}  // namespace cleave::comm
