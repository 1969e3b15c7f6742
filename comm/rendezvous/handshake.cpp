#include "comm/rendezvous/handshake.h"

#include <poll.h>
#include <sodium.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/rendezvous/wire.h"
#include "core/error.h"

namespace cleave::comm {
namespace {

enum class Speaker : uint8_t { caller, called };

std::string new_nonce() {
  std::string nonce(kNonceBytes, 0);
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

// `before` is the preceding text, so that an answer is valid for its hello only.
std::string proof_of(Purpose purpose, Speaker speaker, std::string_view secret, std::string_view nonces,
                     std::string_view before, std::string_view text) {
  static const bool ready = sodium_init() >= 0;
  require(ready, Exit::internal, "libsodium: cannot start");
  const std::string_view label = speaker == Speaker::caller ? "the caller of a rank" : "the called rank";
  wire::Writer said(wire::Type::hello);
  said.put(label).put(uint8_t(purpose)).put(nonces).put(before).put(text);
  const std::string bytes = said.frame();
  const auto data = [](std::string_view s) { return reinterpret_cast<const unsigned char*>(s.data()); };
  crypto_auth_hmacsha256_state state;
  unsigned char mac[crypto_auth_hmacsha256_BYTES];
  static_assert(sizeof(mac) == kProofBytes);
  crypto_auth_hmacsha256_init(&state, data(secret), secret.size());
  crypto_auth_hmacsha256_update(&state, data(bytes), bytes.size());
  crypto_auth_hmacsha256_final(&state, mac);
  return {reinterpret_cast<const char*>(mac), sizeof(mac)};
}

std::string framed(std::string_view proof, std::string_view text) {
  const uint32_t size = uint32_t(proof.size() + text.size());
  CHECK(size <= kHelloLimit, "handshake: malformed text of {} bytes", text.size());
  std::string frame(reinterpret_cast<const char*>(&size), sizeof(size));
  return frame.append(proof).append(text);
}

bool holds(std::string_view proof, std::string_view wanted) {
  return proof.size() == wanted.size() && sodium_memcmp(proof.data(), wanted.data(), wanted.size()) == 0;
}

// Waits until the other end sends bytes; false at the deadline.
bool await(const Socket& socket, const Introduction& c) {
  constexpr auto kAlarmEvery = std::chrono::milliseconds(100);  // interval of alarm checks
  while (!wait_for(socket.fd(), POLLIN, std::min(c.deadline, Clock::now() + kAlarmEvery))) {
    const std::string reason = c.alarm ? c.alarm->reason() : "";
    require(reason.empty(), Exit::rank_lost, "{}", reason);
    if (Clock::now() >= c.deadline) return false;
  }
  return true;
}

}  // namespace

Greeting::Greeting(Purpose purpose, std::string secret) : purpose_(purpose), secret_(std::move(secret)) {}

Greeting::State Greeting::hear(std::string& in, std::string& out) {
  if (nonces_.empty()) {
    const size_t n = std::min(in.size(), kMagic.size());
    if (std::string_view(in).substr(0, n) != kMagic.substr(0, n)) return State::stranger;
    if (in.size() < kMagic.size() + kNonceBytes) return State::hearing;
    const std::string own = new_nonce();
    nonces_ = in.substr(kMagic.size(), kNonceBytes) + own;
    in.erase(0, kMagic.size() + kNonceBytes);
    out.append(kMagic).append(own);
  }
  bool bad = false;
  const auto frame = wire::take_frame(in, kHelloLimit, bad);
  if (bad || (frame && frame->size() < kProofBytes)) return State::stranger;
  if (!frame) return State::hearing;
  hello_ = frame->substr(kProofBytes);
  const auto wanted = proof_of(purpose_, Speaker::caller, secret_, nonces_, "", hello_);
  if (holds(std::string_view(*frame).substr(0, kProofBytes), wanted)) return State::proven;
  out += framed(std::string(kProofBytes, 0), "");  // an empty frame, so that the caller does not wait
  return State::wrong_secret;
}

std::string Greeting::answer(std::string_view text) const {
  return framed(proof_of(purpose_, Speaker::called, secret_, nonces_, hello_, text), text);
}

Answer introduce(Socket& socket, const Introduction& c) {
  const std::string own = new_nonce();
  std::string heard(kMagic.size() + kNonceBytes, 0);
  if (!socket.send_all(std::string(kMagic) + own, c.deadline) || !await(socket, c) ||
      !socket.recv_all(heard.data(), heard.size(), c.deadline) || !heard.starts_with(kMagic))
    return {};
  const std::string nonces = own + heard.substr(kMagic.size());
  const auto proof = proof_of(c.purpose, Speaker::caller, c.secret, nonces, "", c.hello);
  uint32_t size = 0;
  if (!socket.send_all(framed(proof, c.hello), c.deadline) || !await(socket, c) ||
      !socket.recv_all(&size, sizeof(size), c.deadline) || size < kProofBytes || size > kHelloLimit)
    return {};
  std::string frame(size, 0);
  if (!socket.recv_all(frame.data(), size, c.deadline)) return {};
  std::string text = frame.substr(kProofBytes);
  const auto wanted = proof_of(c.purpose, Speaker::called, c.secret, nonces, c.hello, text);
  if (!holds(std::string_view(frame).substr(0, kProofBytes), wanted)) return {Answer::From::stranger};
  return {Answer::From::proven, std::move(text)};
}

}  // namespace cleave::comm
