#include "comm/rendezvous/reception.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

namespace cleave::comm {
namespace {

constexpr size_t kFewest = 64;       // waiting callers per network
constexpr size_t kNetworks = 4;      // total limit, as a multiple of the limit per address
constexpr int kAcceptedAtOnce = 64;  // accepted per turn, so that other work gets its turn
constexpr auto kHelloWithin = std::chrono::seconds(10);
constexpr auto kPause = std::chrono::milliseconds(100);  // if no descriptor is left

// Network of a caller: an IPv4 address, or the /64 prefix of an IPv6 address.
std::string network_of(const Socket& socket) {
  sockaddr_in6 from{};
  socklen_t bytes = sizeof(from);
  getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&from), &bytes);
  const auto text = [](const void* data, size_t size) {
    return std::string(static_cast<const char*>(data), size);
  };
  if (from.sin6_family == AF_INET)
    return text(&reinterpret_cast<sockaddr_in&>(from).sin_addr, sizeof(in_addr));
  const bool v4 = IN6_IS_ADDR_V4MAPPED(&from.sin6_addr);
  return text(from.sin6_addr.s6_addr + (v4 ? 12 : 0), v4 ? 4 : 8);
}

bool no_descriptor_left(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

Reception::Reception(Socket listener, Purpose purpose, std::string secret, size_t expected)
    : listener_(std::move(listener)),
      purpose_(purpose),
      secret_(std::move(secret)),
      most_(std::max(kFewest, expected)) {}

void Reception::add_to(std::vector<pollfd>& polls) const {
  polls.push_back({Clock::now() < accept_after_ ? -1 : listener_.fd(), POLLIN, 0});
  for (const Caller& c : callers_) polls.push_back({c.guest.socket.fd(), POLLIN, 0});
}

std::vector<Guest> Reception::receive(std::span<const pollfd> polls) {
  std::vector<Guest> guests;
  const auto now = Clock::now();
  size_t i = 1;
  for (At c = callers_.begin(); c != callers_.end(); ++i) {
    const bool stays = (!polls[i].revents || hear(*c, guests)) && now - c->since < kHelloWithin;
    c = stays ? std::next(c) : drop(c);
  }
  if (polls[0].revents) accept_new(guests);
  return guests;
}

void Reception::accept_new(std::vector<Guest>& guests) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    Socket socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && no_descriptor_left(errno)) {
      if (drop_oldest(most_frequent())) continue;
      accept_after_ = Clock::now() + kPause;
    }
    if (!socket && (errno == ECONNABORTED || errno == EINTR)) continue;
    if (!socket) return;
    tune(socket);
    const std::string network = network_of(socket);
    if (of_network_[network] >= most_) drop_oldest(network);
    if (callers_.size() >= kNetworks * most_) drop_oldest(most_frequent());
    ++of_network_[network];
    callers_.push_back({{std::move(socket), Greeting(purpose_, secret_)}, network});
    if (!hear(callers_.back(), guests)) drop(std::prev(callers_.end()));
  }
}

bool Reception::hear(Caller& c, std::vector<Guest>& guests) {
  Guest& g = c.guest;
  char buffer[kHelloLimit];
  const ssize_t n = recv(g.socket.fd(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n <= 0) return false;
  g.in.append(buffer, size_t(n));
  std::string out;
  const Greeting::State state = g.greeting.hear(g.in, out);
  // The reply fits into the empty send buffer.
  const bool sent = out.empty() || send(g.socket.fd(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
                                       ssize_t(out.size());
  if (!sent || state == Greeting::State::stranger) return false;
  if (state == Greeting::State::hearing) return true;
  g.proven = state == Greeting::State::proven;
  guests.push_back(std::move(g));
  return false;
}

bool Reception::drop_oldest(const std::string& network) {
  const At oldest =
      std::find_if(callers_.begin(), callers_.end(), [&](const Caller& c) { return c.network == network; });
  if (oldest == callers_.end()) return false;
  drop(oldest);
  return true;
}

std::string Reception::most_frequent() const {
  const auto most = std::max_element(of_network_.begin(), of_network_.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == of_network_.end() ? std::string() : most->first;
}

Reception::At Reception::drop(At caller) {
  const auto count = of_network_.find(caller->network);
  if (--count->second == 0) of_network_.erase(count);
  return callers_.erase(caller);
}

}  // namespace cleave::comm
