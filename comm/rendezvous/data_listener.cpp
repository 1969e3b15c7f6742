#include "comm/rendezvous/data_listener.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "comm/rendezvous/secret.h"
#include "comm/rendezvous/wire.h"
#include "core/error.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;
using wire::Reader;
using wire::Type;
using wire::Writer;

constexpr auto kLook = 100ms;           // interval of alarm checks
constexpr size_t kMostKept = 64 << 10;  // connections for groups that form later

void throw_if_rung(const Alarm& alarm) {
  if (const std::string reason = alarm.reason(); !reason.empty()) fail(Exit::rank_lost, "{}", reason);
}

Socket listener_at(const std::string& address) {
  Socket listener = listen_on(0, address);
  require(bool(listener), Exit::usage, "cannot listen on the address {} of this machine: {}", address,
          std::strerror(errno));
  return listener;
}

}  // namespace

DataListener::DataListener(const std::string& address, int ranks)
    : address_(address),
      secret_(random_secret()),
      reception_(listener_at(address), Purpose::data, secret_, size_t(ranks)) {}

std::string DataListener::where() const {
  const int32_t port = port_of(reception_.listener());
  return Writer(Type::value).put(address_).put(port).put(secret_).frame();
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
  std::vector<pollfd> polls;
  reception_.add_to(polls);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  poll(polls.data(), polls.size(), int(std::max<int64_t>(0, left)));
  for (Guest& guest : reception_.receive(polls)) take(std::move(guest));
}

void DataListener::take(Guest guest) {
  if (!guest.proven || came_.size() >= kMostKept) return;
  Reader r(guest.greeting.hello());
  const Type type = Type(r.number<uint8_t>());
  const std::string group = r.text();
  const int rank = r.number<int32_t>();
  if (!r.good() || type != Type::hello) return;
  const std::string welcome = guest.greeting.answer(Writer(Type::welcome).text());
  if (guest.socket.send_all(welcome, Clock::now() + 1s)) came_[{group, rank}] = std::move(guest.socket);
}

Socket connect_data(const DataLink& link, int rank, const std::string& where, const Alarm& alarm,
                    Clock::time_point deadline) {
  Reader r(std::string_view(where).substr(std::min(where.size(), sizeof(uint32_t) + 1)));
  const std::string address = r.text();
  const int port = r.number<int32_t>();
  const std::string secret = r.text();
  CHECK(r.good(), "{} sent a malformed data address", link.label);
  const Writer hello = Writer(Type::hello).put(link.group).put(int32_t(rank));
  for (auto wait = 5ms;; wait = std::min(wait * 3 / 2, 500ms)) {
    std::string why;
    Socket socket = connect_to(address, port, std::min(deadline, Clock::now() + 10s), why);
    if (socket) {
      const Answer answer = introduce(socket, {Purpose::data, secret, hello.text(), deadline, &alarm});
      if (answer.from == Answer::From::proven) return socket;
      why = answer.from == Answer::From::stranger ? "the process there does not have the rank's secret"
                                                  : "it closed the connection or sent nothing";
    }
    throw_if_rung(alarm);
    require(Clock::now() < deadline, Exit::rank_lost,
            "{} was not reachable for data at {}:{} before the deadline: {}", link.label, address, port, why);
    std::this_thread::sleep_for(wait);
  }
}

}  // namespace cleave::comm
