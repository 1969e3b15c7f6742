#include "comm/rendezvous/socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

namespace cleave::comm {

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = other.release();
  }
  return *this;
}

int Socket::release() { return std::exchange(fd_, -1); }

void Socket::close() {
  if (fd_ >= 0) ::close(release());
}

bool wait_for(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd p{fd, events, 0};
    const int n = poll(&p, 1, int(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

bool Socket::send_all(std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0)
      bytes.remove_prefix(size_t(n));
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
      return false;
    else if (!wait_for(fd_, POLLOUT, deadline))
      return false;
  }
  return true;
}

bool Socket::recv_all(void* data, size_t bytes, Clock::time_point deadline) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::recv(fd_, at, bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (n > 0) {
      at += n;
      bytes -= size_t(n);
    } else if (!wait_for(fd_, POLLIN, deadline)) {
      return false;
    }
  }
  return true;
}

static void close_keeping_errno(Socket& socket) {
  const int error = errno;
  socket.close();
  errno = error;
}

namespace {

// Socket bound to a numeric address and port. On failure, returns an invalid socket and sets errno.
Socket bound_to(const std::string& address, int port) {
  const int yes = 1, no = 0;
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) {
    errno = EADDRNOTAVAIL;
    return {};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  Socket socket(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return socket;
  if (list->ai_family == AF_INET6) setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  // Connections of a job that just ended must not block the port for the next one.
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(socket.fd(), list->ai_addr, list->ai_addrlen) != 0) close_keeping_errno(socket);
  return socket;
}

}  // namespace

Socket reserve_port(int port, const std::string& address) {
  if (!address.empty()) return bound_to(address, port);
  Socket socket = bound_to("::", port);
  if (!socket && errno == EAFNOSUPPORT) socket = bound_to("0.0.0.0", port);  // no IPv6
  return socket;
}

const std::string& loopback() {
  static const std::string address = !bound_to("127.0.0.1", 0) && bound_to("::1", 0) ? "::1" : "127.0.0.1";
  return address;
}

bool start_listening(Socket& socket) {
  if (socket && listen(socket.fd(), SOMAXCONN) != 0) close_keeping_errno(socket);
  return bool(socket);
}

Socket listen_on(int port, const std::string& address) {
  Socket socket = reserve_port(port, address);
  start_listening(socket);
  return socket;
}

int port_of(const Socket& socket) {
  sockaddr_in6 address{};
  socklen_t bytes = sizeof(address);
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &bytes);
  return ntohs(address.sin6_port);  // at the same offset in an IPv4 address
}

// Address of one end of a connection; `end` is getsockname() or getpeername().
static std::string address_of(const Socket& connection, int (*end)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  char text[NI_MAXHOST] = {};
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (end(connection.fd(), address, &bytes) != 0 ||
      getnameinfo(address, bytes, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0)
    return {};
  const std::string_view v4_in_v6 = "::ffff:";
  const std::string_view all(text);
  return std::string(all.starts_with(v4_in_v6) ? all.substr(v4_in_v6.size()) : all);
}

std::string own_address(const Socket& connection) { return address_of(connection, ::getsockname); }
std::string peer_address(const Socket& connection) { return address_of(connection, ::getpeername); }

std::string address_towards(const std::string& address) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST;
  if (getaddrinfo(address.c_str(), "9", &hints, &list) != 0) return {};
  const Socket socket(::socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const bool routed = ::connect(socket.fd(), list->ai_addr, list->ai_addrlen) == 0;  // sends nothing
  freeaddrinfo(list);
  return routed ? own_address(socket) : std::string();
}

int port_here(const Socket& connection) {
  const std::string own = own_address(connection);
  if (own.empty() || own != peer_address(connection)) return 0;
  sockaddr_in6 other{};
  socklen_t bytes = sizeof(other);
  getpeername(connection.fd(), reinterpret_cast<sockaddr*>(&other), &bytes);
  return ntohs(other.sin6_port);  // at the same offset in an IPv4 address
}

Socket connect_to(const std::string& host, int port, Clock::time_point deadline, std::string& why) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list)) {
    why = fmt::format("cannot resolve '{}': {}", host, gai_strerror(error));
    return {};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  for (const addrinfo* a = list; a; a = a->ai_next) {
    Socket socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (!socket || (connect(socket.fd(), a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS))
      error = errno;
    else if (!wait_for(socket.fd(), POLLOUT, deadline))
      error = ETIMEDOUT;
    else
      getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error == 0) {
      tune(socket);
      return socket;
    }
    why = std::strerror(error);
  }
  return {};
}

void tune(const Socket& socket) {
  const int yes = 1, idle_s = 15, interval_s = 5, probes = 4, unanswered_ms = 60'000;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof(unanswered_ms));
}

namespace {

// Inodes of sockets that listen on the port, from /proc/net/tcp.
std::set<std::string> listeners(int port) {
  std::set<std::string> inodes;
  const std::string wanted = fmt::format(":{:04X}", port);
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, skip, inode;
      words >> slot >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skip;
      words >> inode;
      if (state == "0A" && local.ends_with(wanted)) inodes.insert("socket:[" + inode + "]");
    }
  }
  return inodes;
}

bool has_one_of(const std::string& pid, const std::set<std::string>& inodes) {
  const std::string folder = "/proc/" + pid + "/fd";
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  if (!dir) return false;
  while (const dirent* entry = readdir(dir.get())) {
    char target[64] = {};
    if (readlinkat(dirfd(dir.get()), entry->d_name, target, sizeof(target) - 1) > 0 && inodes.count(target))
      return true;
  }
  return false;
}

}  // namespace

std::string owner_of_port(int port) {
  const auto inodes = listeners(port);
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  if (!proc || inodes.empty()) return "another program";
  while (const dirent* entry = readdir(proc.get())) {
    const std::string pid = entry->d_name;
    if (pid.find_first_not_of("0123456789") != std::string::npos || !has_one_of(pid, inodes)) continue;
    std::string name;
    std::getline(std::ifstream("/proc/" + pid + "/comm"), name);
    return fmt::format("{} (pid {})", name, pid);
  }
  return "another program";
}

std::string problem_of_port(int port, int error) {
  if (error == EADDRINUSE) return owner_of_port(port) + " uses it";
  const bool files = error == EMFILE || error == ENFILE;
  return std::strerror(error) + std::string(files ? "; allow more open files: ulimit -n" : "");
}

}  // namespace cleave::comm
