#include "comm/rendezvous/key_value_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "core/printable.h"

namespace cleave::comm {

using namespace wire;

namespace {

// Limits of a member, far above the needs of a rank.
constexpr size_t kMostStored = 64 << 20;         // bytes of keys and values of all members
constexpr size_t kKeyCost = 256;                 // bytes per key in addition to its text
constexpr size_t kMostUnread = 4 * kFrameLimit;  // bytes of unread answers
constexpr size_t kMostWaits = 10'000;            // pending get() calls

std::string name_of_rank(const Hello& h) {
  return fmt::format("rank {} (pid {} on {})", h.rank, h.pid, in_line(h.host));
}

}  // namespace

KeyValueServer::KeyValueServer(Socket listener, Hello self, std::string secret, SecretDoor door)
    : door_(std::move(door)),
      reception_(std::move(listener), Purpose::store, std::move(secret), size_t(self.world)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      self_(std::move(self)),
      members_(size_t(self_.world)),
      thread_([this] { serve(); }) {}

KeyValueServer::~KeyValueServer() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  eventfd_write(wake_.fd(), 1);
  thread_.join();
}

void KeyValueServer::leave_by(Clock::time_point deadline) {
  std::lock_guard lock(mutex_);
  leave_by_ = deadline;
}

std::vector<int> KeyValueServer::missing() const {
  std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (size_t r = 0; r < members_.size(); ++r)
    if (members_[r].name.empty()) ranks.push_back(int(r));
  return ranks;
}

std::vector<std::string> KeyValueServer::refusals() const {
  std::lock_guard lock(mutex_);
  return refusals_;
}

bool KeyValueServer::all_left() const {
  return std::all_of(connections_.begin(), connections_.end(), [](const Connection& c) { return c.closing; });
}

void KeyValueServer::serve() {
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (stopping_ && (all_left() || Clock::now() >= leave_by_)) return;
    }
    std::vector<pollfd> polls = {{wake_.fd(), POLLIN, 0}, {door_.fd(), POLLIN, 0}};
    std::vector<Connection*> order;
    for (Connection& c : connections_) {
      polls.push_back({c.socket.fd(), short(c.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      order.push_back(&c);
    }
    const size_t members = polls.size();
    reception_.add_to(polls);
    poll(polls.data(), polls.size(), 100);
    uint64_t count = 0;
    if (polls[0].revents) eventfd_read(wake_.fd(), &count);
    if (polls[1].revents) door_.hand_out();
    for (size_t i = 0; i < order.size(); ++i) {
      if (polls[i + 2].revents & POLLOUT) write_to(*order[i]);
      if (polls[i + 2].revents & ~POLLOUT) read_from(*order[i]);
    }
    for (Guest& guest : reception_.receive(std::span(polls).subspan(members))) admit(std::move(guest));
    drop_closed();
  }
}

void KeyValueServer::drop_closed() {
  for (auto& [key, list] : wanted_) std::erase_if(list, [](const Wanted& w) { return w.by->closing; });
  std::erase_if(connections_, [](const Connection& c) { return c.closing && c.out.empty(); });
}

void KeyValueServer::read_from(Connection& c) {
  char buffer[16 << 10];
  const ssize_t n = recv(c.socket.fd(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0 || c.closing) {
    c.out.clear();
    if (!c.closing) lost(c);
    return;
  }
  c.in.append(buffer, size_t(n));
  handle_all(c);
}

void KeyValueServer::handle_all(Connection& c) {
  bool bad = false;
  while (!c.closing) {
    const auto frame = take_frame(c.in, kFrameLimit, bad);
    if (bad) return lost(c);
    if (!frame) return;
    handle(c, *frame);
  }
}

void KeyValueServer::write_to(Connection& c) {
  const ssize_t n = send(c.socket.fd(), c.out.data(), c.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) c.out.erase(0, size_t(n));
  if (n < 0 && errno != EAGAIN && errno != EINTR) {
    c.out.clear();
    if (!c.closing) lost(c);
  }
}

void KeyValueServer::handle(Connection& c, std::string_view frame) {
  Reader r(frame);
  const Type type = Type(r.number<uint8_t>());
  if (type == Type::bye) {
    std::lock_guard lock(mutex_);
    members_[size_t(c.rank)].left = true;
    c.closing = true;
    return;
  }
  if (type == Type::failed) {
    const std::string reason = r.text();
    const bool explained = r.number<uint8_t>() != 0;
    if (!r.good()) return lost(c);
    return ring(fmt::format("{} failed: {}", members_[size_t(c.rank)].name, reason), explained);
  }
  const uint64_t request = r.number<uint64_t>();
  const std::string key = r.text();
  const std::string value = type == Type::set ? r.text() : std::string();
  const int64_t by = type == Type::add ? r.number<int64_t>() : 0;
  if (!r.good() || (type != Type::set && type != Type::get && type != Type::add)) return lost(c);
  if (type == Type::set) return set(c, key, value);
  if (type == Type::add) add(c, key, by);
  if (!c.closing) get(c, key, request);
}

void KeyValueServer::get(Connection& c, const std::string& key, uint64_t request) {
  const auto value = values_.find(key);
  if (value != values_.end()) return answer(c, request, value->second);
  wanted_[key].push_back({&c, request});
  if (++c.waits > kMostWaits) lost(c, "waits for too many keys");
}

void KeyValueServer::answer(Connection& c, uint64_t request, const std::string& value) {
  if (c.closing) return;
  c.out += Writer(Type::value).put(request).put(value).frame();
  if (c.out.size() > kMostUnread) lost(c, "does not read its answers");
}

void KeyValueServer::add(Connection& c, const std::string& key, int64_t by) {
  const auto value = values_.find(key);
  const auto before = value == values_.end() ? std::optional<int64_t>(0) : whole_number(value->second);
  int64_t sum = 0;
  if (!before || __builtin_add_overflow(*before, by, &sum))
    return lost(c, "added to a value that is not a number");
  set(c, key, std::to_string(sum));
}

void KeyValueServer::set(Connection& c, const std::string& key, std::string value) {
  const auto old = values_.find(key);
  if (old != values_.end()) stored_ -= key.size() + old->second.size() + kKeyCost;
  stored_ += key.size() + value.size() + kKeyCost;
  if (stored_ > kMostStored) return lost(c, "exceeded the storage limit");
  values_[key] = std::move(value);
  const auto waiting = wanted_.find(key);
  if (waiting == wanted_.end()) return;
  for (const Wanted& w : waiting->second) {
    --w.by->waits;
    answer(*w.by, w.request, values_[key]);
  }
  wanted_.erase(waiting);
}

KeyValueServer::Refusal KeyValueServer::refusal_of(const Hello& h) const {
  constexpr const char* kOtherPort =
      "choose another port for one of the jobs (cleave launch --master_port, or MASTER_PORT)";
  if (!h.job_id.empty() && !self_.job_id.empty() && h.job_id != self_.job_id)
    return {fmt::format("the port belongs to job '{}', not {}; {}", self_.job_id, in_quotes(h.job_id, 200),
                        kOtherPort),
            true};
  if (h.port != self_.port)
    return {
        fmt::format("{} called port {}, but rank 0 listens on port {}: another process forwarded the call",
                    name_of_rank(h), h.port, self_.port)};
  if (h.attempt < self_.attempt)
    return {fmt::format("{} belongs to attempt {}, but attempt {} is running", name_of_rank(h), h.attempt,
                        self_.attempt)};
  if (h.world != self_.world)
    return {fmt::format("number of ranks: {} was started as one of {}, rank 0 (pid {} on {}) as one of {}",
                        name_of_rank(h), h.world, self_.pid, self_.host, self_.world)};
  if (h.rank < 0 || h.rank >= self_.world)
    return {fmt::format("rank {} is out of range (the job has {} ranks)", h.rank, self_.world)};
  if (h.version != self_.version)
    return {
        fmt::format("{} has cleave {}, rank 0 (pid {} on {}) has {}; install the same version on all hosts",
                    name_of_rank(h), in_line(h.version), self_.pid, self_.host, self_.version)};
  const Member& member = members_[size_t(h.rank)];
  if (!member.name.empty())
    return {
        fmt::format("duplicate rank {}: pid {} on {}, and {}", h.rank, h.pid, in_line(h.host), member.name)};
  return {alarm_};
}

void KeyValueServer::admit(Guest guest) {
  if (!guest.proven)
    return refuse(guest, fmt::format("a process at {} without the job token", peer_address(guest.socket)),
                  true);
  const auto hello = decode_hello(guest.greeting.hello());
  if (!hello) return;
  // A caller of a later attempt: this process is the leftover of an earlier one, and the caller should retry
  // when its successor runs.
  const bool wait = hello->attempt > self_.attempt;
  const auto [reason, of_other_job] = wait ? Refusal{} : refusal_of(*hello);
  if (!reason.empty()) return refuse(guest, reason, of_other_job);
  const std::string answer = guest.greeting.answer(Writer(wait ? Type::wait : Type::welcome).text());
  if (!guest.socket.send_all(answer, Clock::now()) || wait) return;
  {
    std::lock_guard lock(mutex_);
    members_[size_t(hello->rank)] = {name_of_rank(*hello), false};
  }
  handle_all(connections_.emplace_back(
      Connection{.socket = std::move(guest.socket), .rank = hello->rank, .in = std::move(guest.in)}));
}

void KeyValueServer::refuse(Guest& guest, const std::string& reason, bool of_other_job) {
  std::lock_guard lock(mutex_);
  if (refusals_.size() < 16 && std::find(refusals_.begin(), refusals_.end(), reason) == refusals_.end())
    refusals_.push_back(reason);
  if (!guest.proven) return;
  const Writer words = Writer(Type::refused).put(reason.substr(0, 2000)).put(uint8_t(of_other_job));
  guest.socket.send_all(guest.greeting.answer(words.text()), Clock::now());
}

void KeyValueServer::lost(Connection& c, std::string_view how) {
  c.closing = true;
  c.out.clear();
  ring(fmt::format("{} {}", members_[size_t(c.rank)].name, how));
}

void KeyValueServer::ring(const std::string& reason, bool explained) {
  if (!alarm_.empty()) return;
  alarm_ = reason;
  for (Connection& c : connections_)
    if (!c.closing) c.out += Writer(Type::alarm).put(reason).put(uint8_t(explained)).frame();
}

}  // namespace cleave::comm
