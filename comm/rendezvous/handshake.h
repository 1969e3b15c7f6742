// Mutual proof of a shared secret over a connection, without sending the secret:
//
//   caller -> called   kMagic, a nonce
//   called -> caller   kMagic, a nonce
//   caller -> called   a frame: proof, hello
//   called -> caller   a frame: proof, answer
//
// A proof is the HMAC-SHA-256, keyed with the secret, of a label of purpose and direction, both nonces and
// the text, so that it cannot be reused, reflected, or used for another kind of connection. The caller proves
// first: a stranger that only connects learns nothing. Any rank may be either end.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/alarm.h"
#include "comm/rendezvous/socket.h"

namespace cleave::comm {

enum class Purpose : uint8_t { store, data };

inline constexpr std::string_view kMagic{"CLEAVE\x04\n", 8};  // change with the protocol
inline constexpr size_t kNonceBytes = 32, kProofBytes = 32;
inline constexpr size_t kHelloLimit = 4 << 10;  // bytes of a frame with a proof

// The called end; receives bytes as they arrive.
class Greeting {
 public:
  Greeting(Purpose purpose, std::string secret);

  // proven: the sender of hello() has the secret. stranger: the bytes do not follow this protocol.
  enum class State : uint8_t { hearing, proven, wrong_secret, stranger };
  // Consumes bytes from the front of `in`, and appends the reply to `out`.
  State hear(std::string& in, std::string& out);
  const std::string& hello() const { return hello_; }
  // The last frame, after the caller is proven.
  std::string answer(std::string_view text) const;

 private:
  Purpose purpose_;
  std::string secret_, nonces_, hello_;
};

// Result of the caller's end.
struct Answer {
  enum class From : uint8_t { nobody, stranger, proven } from = From::nobody;
  std::string text = {};  // of a proven end
};
// The caller's request.
struct Introduction {
  Purpose purpose = Purpose::store;
  std::string_view secret, hello;
  Clock::time_point deadline;
  const Alarm* alarm = nullptr;  // ends the wait
};
// Sends the hello and waits for the answer until the deadline. Answer::from keeps its default if the other
// end hangs up or speaks another protocol, and is `stranger` if it does not have the secret. Throws
// Error(rank_lost) with the alarm's reason.
Answer introduce(Socket& socket, const Introduction& what);

}  // namespace cleave::comm
