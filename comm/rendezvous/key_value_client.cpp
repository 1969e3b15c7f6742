#include "comm/rendezvous/key_value_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "comm/rendezvous/handshake.h"
#include "core/error.h"
#include "core/printable.h"

namespace cleave::comm {

using namespace wire;

namespace {
constexpr auto kAnswerWithin = std::chrono::seconds(5);
constexpr auto kSendWithin = std::chrono::seconds(60);

constexpr std::string_view kWrongSecret =
    "the job token is wrong: the process there belongs to another job, or has another CLEAVE_TOKEN or user; "
    "choose another port for one of the jobs (cleave launch --master_port, or MASTER_PORT)";

// Names the local process at the other end, if it is on this machine; rank 0 of another job does not identify
// itself to strangers.
std::string who_has_the_port(const Socket& socket) {
  const int port = port_here(socket);
  return port > 0 ? fmt::format("; {} has this port", owner_of_port(port)) : "";
}
}  // namespace

KeyValueClient::Joined KeyValueClient::join(Socket socket, const Hello& hello, std::string_view secret,
                                            std::shared_ptr<Alarm> alarm) {
  const Answer answer =
      introduce(socket, {Purpose::store, secret, encode(hello), Clock::now() + kAnswerWithin, nullptr});
  if (answer.from == Answer::From::stranger)
    return {
        .why = std::string(kWrongSecret) + who_has_the_port(socket), .refused = true, .of_other_job = true};
  Joined nobody{.why = "another process than rank 0 of this job answers there"};
  if (answer.from == Answer::From::nobody) return nobody;
  Reader r(answer.text);
  switch (Type(r.number<uint8_t>())) {
    case Type::welcome:
      return {.client =
                  std::unique_ptr<KeyValueClient>(new KeyValueClient(std::move(socket), std::move(alarm)))};
    case Type::refused: {
      const std::string reason = in_line(r.text(), 1000);
      const bool of_other_job = r.number<uint8_t>() != 0;
      return {.why = reason + (of_other_job ? who_has_the_port(socket) : ""),
              .refused = true,
              .of_other_job = of_other_job};
    }
    case Type::wait:
      return {.why = "rank 0 of an earlier attempt is still running"};
    default:
      return nobody;
  }
}

KeyValueClient::KeyValueClient(Socket socket, std::shared_ptr<Alarm> alarm)
    : socket_(std::move(socket)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      alarm_(std::move(alarm)),
      thread_([this] { listen(); }) {}

KeyValueClient::~KeyValueClient() {
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  eventfd_write(wake_.fd(), 1);
  thread_.join();
}

void KeyValueClient::listen() {
  std::string in;
  for (;;) {
    pollfd polls[] = {{wake_.fd(), POLLIN, 0}, {socket_.fd(), POLLIN, 0}};
    poll(polls, 2, -1);
    if (polls[0].revents) return;
    if (!polls[1].revents) continue;
    char buffer[16 << 10];
    const ssize_t n = recv(socket_.fd(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return lost("rank 0, which serves the rendezvous, ended");
    in.append(buffer, size_t(n));
    bool bad = false;
    while (const auto frame = take_frame(in, kFrameLimit, bad)) {
      Reader r(*frame);
      const Type type = Type(r.number<uint8_t>());
      if (type == Type::alarm) {
        const std::string reason = r.text();
        lost(reason, r.number<uint8_t>() != 0);
      } else if (type == Type::value) {
        const uint64_t request = r.number<uint64_t>();
        std::string value = r.text();
        std::lock_guard lock(mutex_);
        if (auto it = requests_.find(request); r.good() && it != requests_.end())
          it->second = std::move(value);
        answered_.notify_all();
      }
    }
    if (bad) return lost("the rendezvous sent a malformed message");
  }
}

void KeyValueClient::lost(const std::string& reason, bool explained) {
  {
    std::lock_guard lock(mutex_);
    if (leaving_) return;
  }
  alarm_->ring(reason, explained);
  std::lock_guard lock(mutex_);
  answered_.notify_all();
}

void KeyValueClient::send(const std::string& frame) {
  if (socket_.send_all(frame, Clock::now() + kSendWithin)) return;
  const std::string reason = alarm_->reason();
  fail(Exit::rank_lost, "{}", reason.empty() ? "the connection to rank 0 broke" : reason);
}

void KeyValueClient::set(const std::string& key, std::string_view value) {
  CHECK(value.size() < kFrameLimit / 2, "store: the value of '{}' has {} bytes", key, value.size());
  std::lock_guard lock(mutex_);
  send(Writer(Type::set).put(uint64_t{0}).put(key).put(value).frame());
}

std::optional<std::string> KeyValueClient::await(uint64_t request, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  answered_.wait_until(lock, deadline, [&] { return requests_[request] || !alarm_->reason().empty(); });
  const auto value = std::move(requests_[request]);
  requests_.erase(request);
  if (!value && !alarm_->reason().empty()) fail(Exit::rank_lost, "{}", alarm_->reason());
  return value;
}

std::optional<std::string> KeyValueClient::get(const std::string& key, Clock::time_point deadline) {
  uint64_t request = 0;
  {
    std::lock_guard lock(mutex_);
    request = next_request_++;
    requests_[request];
    send(Writer(Type::get).put(request).put(key).frame());
  }
  return await(request, deadline);
}

int64_t KeyValueClient::add(const std::string& key, int64_t by, Clock::time_point deadline) {
  uint64_t request = 0;
  {
    std::lock_guard lock(mutex_);
    request = next_request_++;
    requests_[request];
    send(Writer(Type::add).put(request).put(key).put(by).frame());
  }
  const auto sum = await(request, deadline);
  require(sum.has_value(), Exit::rank_lost, "rank 0: no answer before the deadline (adding to '{}')", key);
  const auto number = whole_number(*sum);
  require(number.has_value(), Exit::rank_lost, "rank 0: malformed answer (got {}, expected a number)",
          in_quotes(*sum));
  return *number;
}

void KeyValueClient::leave() {
  std::lock_guard lock(mutex_);
  if (leaving_) return;
  leaving_ = true;
  socket_.send_all(Writer(Type::bye).frame(), Clock::now() + std::chrono::seconds(2));
}

void KeyValueClient::failed(const std::string& reason, bool explained) {
  std::lock_guard lock(mutex_);
  if (leaving_ || !alarm_->reason().empty()) return;
  socket_.send_all(Writer(Type::failed).put(reason.substr(0, 2000)).put(uint8_t(explained)).frame(),
                   Clock::now() + std::chrono::seconds(2));
}

}  // namespace cleave::comm
