// How two ends of a connection prove to each other that they have the same secret, without sending it:
//
//   caller -> called   kMagic, a nonce
//   called -> caller   kMagic, a nonce
//   caller -> called   a frame: proof, hello
//   called -> caller   a frame: proof, answer
//
// A proof is HMAC-SHA-256 with the secret as key over a label of the purpose and the direction, both nonces
// and what is said, so that none holds again, in the other direction, or for another kind of connection. The
// caller proves first: who only connects learns nothing. Any rank may be either end.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/alarm.h"
#include "comm/rendezvous/socket.h"

namespace cleave::comm {

enum class Purpose : uint8_t { store, data };

inline constexpr std::string_view kMagic{"CLEAVE\x04\n", 8};  // changes with the protocol
inline constexpr size_t kNonceBytes = 32, kProofBytes = 32;
inline constexpr size_t kHelloLimit = 4 << 10;  // bytes of a frame with a proof

// The called end, fed with bytes as they come.
class Greeting {
 public:
  Greeting(Purpose purpose, std::string secret);

  // proven: hello() is of somebody who has the secret. stranger: it is not, or the bytes are not ours.
  enum class State : uint8_t { hearing, proven, wrong_secret, stranger };
  // Takes what came off the front of `in`, and appends to `out` what has to be sent.
  State hear(std::string& in, std::string& out);
  const std::string& hello() const { return hello_; }
  // The last frame, once the caller is proven.
  std::string answer(std::string_view text) const;

 private:
  Purpose purpose_;
  std::string secret_, nonces_, hello_;
};

// The caller's end.
struct Answer {
  enum class From : uint8_t { nobody, stranger, proven } from = From::nobody;
  std::string text = {};  // of a proven end
};
// What a caller wants.
struct Introduction {
  Purpose purpose = Purpose::store;
  std::string_view secret, hello;
  Clock::time_point deadline;
  const Alarm* alarm = nullptr;  // ends the wait
};
// Says hello, and hears the answer before the deadline. nobody: the other end hung up or does not speak so.
// stranger: it does not have the secret. Error(rank_lost) with the alarm's reason.
Answer introduce(Socket& socket, const Introduction& what);

}  // namespace cleave::comm
