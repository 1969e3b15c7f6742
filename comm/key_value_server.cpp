#include "comm/key_value_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "comm/secret.h"
#include "core/printable.h"

namespace cleave::comm {

using namespace wire;

namespace {

constexpr size_t kStrangers = 64;  // connections that have not said hello
constexpr auto kHelloWithin = std::chrono::seconds(10);
// What a member may do, many times what a rank does.
constexpr size_t kMostStored = 64 << 20;         // bytes of keys and values, of all members
constexpr size_t kKeyCost = 256;                 // of them, for what a key takes beside its text
constexpr size_t kMostUnread = 4 * kFrameLimit;  // bytes of answers that it has not read
constexpr size_t kMostWaits = 10'000;            // for keys that are not set

std::string name_of_rank(const Hello& h) {
  return fmt::format("rank {} (pid {} on {})", h.rank, h.pid, in_line(h.host));
}

}  // namespace

KeyValueServer::KeyValueServer(Socket listener, Hello self)
    : listener_(std::move(listener)),
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
  return std::all_of(connections_.begin(), connections_.end(),
                     [](const Connection& c) { return c.rank < 0 || c.closing; });
}

void KeyValueServer::serve() {
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (stopping_ && (all_left() || Clock::now() >= leave_by_)) return;
    }
    std::vector<pollfd> polls = {{wake_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    std::vector<Connection*> order;
    for (Connection& c : connections_) {
      polls.push_back({c.socket.fd(), short(c.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      order.push_back(&c);
    }
    poll(polls.data(), polls.size(), 100);
    uint64_t count = 0;
    if (polls[0].revents) eventfd_read(wake_.fd(), &count);
    for (size_t i = 0; i < order.size(); ++i) {
      if (polls[i + 2].revents & POLLOUT) write_to(*order[i]);
      if (polls[i + 2].revents & ~POLLOUT) read_from(*order[i]);
    }
    if (polls[1].revents) accept_new();
    drop_closed();
  }
}

void KeyValueServer::accept_new() {
  for (;;) {
    Socket socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    tune(socket);
    Connection& c = connections_.emplace_back();
    c.socket = std::move(socket);
    read_from(c);  // so that who speaks at once is not among the strangers
  }
}

void KeyValueServer::drop_closed() {
  // Too many strangers: the oldest go first.
  size_t strangers = size_t(std::count_if(connections_.begin(), connections_.end(),
                                          [](const Connection& c) { return c.rank < 0 && !c.closing; }));
  const auto now = Clock::now();
  for (Connection& c : connections_)
    if (c.rank < 0 && !c.closing && (strangers > kStrangers || now - c.since > kHelloWithin)) {
      c.closing = true;
      c.out.clear();
      --strangers;
    }
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
  if (!c.greeted && !greet(c)) return;
  bool bad = false;
  while (!c.closing) {
    const auto frame = take_frame(c.in, c.rank < 0 ? kHelloLimit : kFrameLimit, bad);
    if (bad) return lost(c);
    if (!frame) return;
    handle(c, *frame);
  }
}

bool KeyValueServer::greet(Connection& c) {
  const size_t n = std::min(c.in.size(), kMagic.size());
  if (std::string_view(c.in).substr(0, n) != kMagic.substr(0, n))
    c.closing = true;  // not one of ours: no answer
  if (c.closing || n < kMagic.size()) return false;
  c.in.erase(0, n);
  c.greeted = true;
  c.out += kMagic;
  return true;
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
  if (c.rank < 0) {
    const auto hello = decode_hello(frame);
    if (!hello) return lost(c);
    return admit(c, *hello);
  }
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
    if (!r.good()) return lost(c);
    return ring(fmt::format("{} failed: {}", members_[size_t(c.rank)].name, reason));
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
  if (c.out.size() > kMostUnread) lost(c, "asks and reads no answers");
}

void KeyValueServer::add(Connection& c, const std::string& key, int64_t by) {
  const auto value = values_.find(key);
  const auto before = value == values_.end() ? std::optional<int64_t>(0) : whole_number(value->second);
  int64_t sum = 0;
  if (!before || __builtin_add_overflow(*before, by, &sum)) return lost(c, "added to what is no number");
  set(c, key, std::to_string(sum));
}

void KeyValueServer::set(Connection& c, const std::string& key, std::string value) {
  const auto old = values_.find(key);
  if (old != values_.end()) stored_ -= key.size() + old->second.size() + kKeyCost;
  stored_ += key.size() + value.size() + kKeyCost;
  if (stored_ > kMostStored) return lost(c, "stored more than fits");
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
  if (!same_secret(h.token, self_.token))
    return {fmt::format("the job token is wrong: this process belongs to another job, or has another "
                        "CLEAVE_TOKEN or user; {}",
                        kOtherPort),
            true};
  if (!h.job_id.empty() && !self_.job_id.empty() && h.job_id != self_.job_id)
    return {fmt::format("this is job '{}', not {}; {}", self_.job_id, in_quotes(h.job_id, 200), kOtherPort),
            true};
  if (h.attempt < self_.attempt)
    return {fmt::format("{} is left over from attempt {}; attempt {} is running", name_of_rank(h), h.attempt,
                        self_.attempt)};
  if (h.world != self_.world)
    return {fmt::format("{} was started as one of {} ranks, rank 0 (pid {} on {}) as one of {}",
                        name_of_rank(h), h.world, self_.pid, self_.host, self_.world)};
  if (h.rank < 0 || h.rank >= self_.world)
    return {fmt::format("rank {} of {} does not exist", h.rank, self_.world)};
  if (h.version != self_.version)
    return {
        fmt::format("{} is of cleave {}, rank 0 (pid {} on {}) of {}: install the same version on all hosts",
                    name_of_rank(h), in_line(h.version), self_.pid, self_.host, self_.version)};
  const Member& member = members_[size_t(h.rank)];
  if (!member.name.empty())
    return {fmt::format("rank {} is there twice: pid {} on {}, and {}", h.rank, h.pid, in_line(h.host),
                        member.name)};
  return {alarm_};
}

void KeyValueServer::admit(Connection& c, const Hello& h) {
  // A later attempt than ours: we are the leftover, and the caller should come again when our successor is
  // here.
  if (h.attempt > self_.attempt && same_secret(h.token, self_.token)) {
    c.out += Writer(Type::wait).frame();
    c.closing = true;
    return;
  }
  const auto [reason, of_other_job] = refusal_of(h);
  std::lock_guard lock(mutex_);
  if (reason.empty()) {
    c.rank = h.rank;
    members_[size_t(h.rank)] = {name_of_rank(h), false};
    c.out += Writer(Type::welcome).frame();
    return;
  }
  if (refusals_.size() < 16 && std::find(refusals_.begin(), refusals_.end(), reason) == refusals_.end())
    refusals_.push_back(reason);
  c.out += Writer(Type::refused).put(reason).put(uint8_t(of_other_job)).frame();
  c.closing = true;
}

void KeyValueServer::lost(Connection& c, std::string_view how) {
  c.closing = true;
  c.out.clear();
  if (c.rank >= 0) ring(fmt::format("{} {}", members_[size_t(c.rank)].name, how));
}

void KeyValueServer::ring(const std::string& reason) {
  if (!alarm_.empty()) return;
  alarm_ = reason;
  for (Connection& c : connections_)
    if (c.rank >= 0 && !c.closing) c.out += Writer(Type::alarm).put(reason).frame();
}

}  // namespace cleave::comm
