#include "comm/data_listener.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "comm/secret.h"
#include "comm/wire.h"
#include "core/error.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;
using wire::Reader;
using wire::Type;
using wire::Writer;

constexpr size_t kStrangers = 64;  // connections that have not said who they are
constexpr auto kHelloWithin = 10s;
constexpr auto kLook = 100ms;  // between two looks at the alarm

void throw_if_rung(const Alarm& alarm) {
  if (const std::string reason = alarm.reason(); !reason.empty()) fail(Exit::rank_lost, "{}", reason);
}

// Waits for the listener's word; false when it hung up.
bool welcomed(const Socket& socket, const Alarm& alarm, Clock::time_point deadline) {
  while (!wait_for(socket.fd(), POLLIN, std::min(deadline, Clock::now() + kLook))) {
    throw_if_rung(alarm);
    if (Clock::now() >= deadline) return false;
  }
  char word = 0;
  return recv(socket.fd(), &word, 1, MSG_DONTWAIT) == 1 && word == char(Type::welcome);
}

}  // namespace

DataListener::DataListener(const std::string& address)
    : address_(address), secret_(random_secret()), listener_(listen_on(0, address)) {
  require(bool(listener_), Exit::usage, "cannot listen on the address {} of this machine: {}", address,
          std::strerror(errno));
}

std::string DataListener::where() const {
  return Writer(Type::value).put(address_).put(int32_t(port_of(listener_))).put(secret_).frame();
}

Socket DataListener::accept(const DataLink& link, const Alarm& alarm, Clock::time_point deadline) {
  for (;;) {
    if (const auto it = came_.find({link.group, link.peer}); it != came_.end()) {
      Socket socket = std::move(it->second);
      came_.erase(it);
      return socket;
    }
    throw_if_rung(alarm);
    require(Clock::now() < deadline, Exit::rank_lost, "{} did not connect before the deadline", link.label);
    look(std::min(deadline, Clock::now() + kLook));
  }
}

void DataListener::look(Clock::time_point until) {
  std::vector<pollfd> polls = {{listener_.fd(), POLLIN, 0}};
  for (const Caller& c : strangers_) polls.push_back({c.socket.fd(), POLLIN, 0});
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  poll(polls.data(), polls.size(), int(std::max<int64_t>(0, left)));
  while (Socket socket{accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)}) {
    tune(socket);
    strangers_.push_back({std::move(socket), {}});
  }
  std::erase_if(strangers_, [this](Caller& c) { return !hear(c); });
  while (strangers_.size() > kStrangers) strangers_.pop_front();  // the oldest
}

bool DataListener::hear(Caller& c) {
  char buffer[1 << 10];
  for (ssize_t n; (n = recv(c.socket.fd(), buffer, sizeof(buffer), MSG_DONTWAIT)) != 0;) {
    if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (n < 0) return Clock::now() - c.since < kHelloWithin;
    c.in.append(buffer, size_t(n));
    bool bad = false;
    const auto frame = wire::take_frame(c.in, wire::kHelloLimit, bad);
    if (bad || c.in.size() > wire::kHelloLimit) return false;
    if (!frame) continue;
    Reader r(*frame);
    const Type type = Type(r.number<uint8_t>());
    const std::string secret = r.text(), group = r.text();
    const int rank = r.number<int32_t>();
    if (!r.good() || type != Type::hello || !same_secret(secret, secret_)) return false;
    const char word = char(Type::welcome);
    if (!c.socket.send_all({&word, 1}, Clock::now() + 1s)) return false;
    came_[{group, rank}] = std::move(c.socket);
    return false;
  }
  return false;
}

Socket connect_data(const DataLink& link, int rank, const std::string& where, const Alarm& alarm,
                    Clock::time_point deadline) {
  Reader r(std::string_view(where).substr(std::min(where.size(), sizeof(uint32_t) + 1)));
  const std::string address = r.text();
  const int port = r.number<int32_t>();
  const std::string hello = Writer(Type::hello).put(r.text()).put(link.group).put(int32_t(rank)).frame();
  CHECK(r.good(), "{} gave a malformed address for its data", link.label);
  for (auto wait = 5ms;; wait = std::min(wait * 3 / 2, 500ms)) {
    std::string why;
    Socket socket = connect_to(address, port, std::min(deadline, Clock::now() + 10s), why);
    if (socket && socket.send_all(hello, std::min(deadline, Clock::now() + 10s)) &&
        welcomed(socket, alarm, deadline))
      return socket;
    if (socket) why = "it hung up or said nothing";
    throw_if_rung(alarm);
    require(Clock::now() < deadline, Exit::rank_lost,
            "{} was not reached for data at {}:{} before the deadline: {}", link.label, address, port, why);
    std::this_thread::sleep_for(wait);
  }
}

}  // namespace cleave::comm
