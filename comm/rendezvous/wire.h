// Rendezvous protocol after the handshake (comm/rendezvous/handshake.h): frames of a length and as many
// bytes. Readers never trust bytes from the network: every read is bounded, and a frame that ends before its
// fields is malformed.
#pragma once
#include <charconv>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "core/version.h"

namespace cleave::comm::wire {

inline constexpr size_t kFrameLimit = 1 << 20;

enum class Type : uint8_t {
  // from a rank
  hello,
  set,
  get,
  add,
  bye,
  failed,
  // from the server
  welcome,
  refused,
  wait,
  value,
  alarm
};

class Writer {
 public:
  explicit Writer(Type type) { put(uint8_t(type)); }
  template <std::integral T>
  Writer& put(T number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
    return *this;
  }
  Writer& put(std::string_view text) {
    put(uint32_t(text.size()));
    bytes_.append(text);
    return *this;
  }
  const std::string& text() const { return bytes_; }
  std::string frame() const {
    const uint32_t size = uint32_t(bytes_.size());
    return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + bytes_;
  }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  template <class T>
  T number() {
    T value{};
    if (left_.size() < sizeof(T)) {
      good_ = false;
    } else {
      std::memcpy(&value, left_.data(), sizeof(T));
      left_.remove_prefix(sizeof(T));
    }
    return value;
  }
  std::string text() {
    const uint32_t size = number<uint32_t>();
    if (left_.size() < size) good_ = false;
    if (!good_) return {};
    std::string value(left_.substr(0, size));
    left_.remove_prefix(size);
    return value;
  }
  bool good() const { return good_; }

 private:
  std::string_view left_;
  bool good_ = true;
};

// Removes the first complete frame from the front of `bytes`. Sets `bad` if its length exceeds the limit.
inline std::optional<std::string> take_frame(std::string& bytes, size_t limit, bool& bad) {
  uint32_t size = 0;
  if (bytes.size() < sizeof(size)) return {};
  std::memcpy(&size, bytes.data(), sizeof(size));
  bad = size > limit || size == 0;
  if (bad || bytes.size() < sizeof(size) + size) return {};
  std::string frame = bytes.substr(sizeof(size), size);
  bytes.erase(0, sizeof(size) + size);
  return frame;
}

// Counter value of add() and its answers.
inline std::optional<int64_t> whole_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

// Identity of a caller and its job.
struct Hello {
  std::string job_id;
  int32_t attempt = 0;
  int32_t world = 0, rank = 0;
  int32_t port = 0;  // called port, so that a handshake cannot be relayed to another one
  std::string host;
  int32_t pid = 0;
  std::string version = std::string(build::version);  // of the program
};

inline std::string encode(const Hello& h) {
  Writer w(Type::hello);
  w.put(h.job_id).put(h.attempt).put(h.world).put(h.rank).put(h.port).put(h.host).put(h.pid).put(h.version);
  return w.text();
}

inline std::optional<Hello> decode_hello(std::string_view text) {
  Reader r(text);
  if (Type(r.number<uint8_t>()) != Type::hello) return {};
  Hello h;
  h.job_id = r.text();
  h.attempt = r.number<int32_t>();
  h.world = r.number<int32_t>();
  h.rank = r.number<int32_t>();
  h.port = r.number<int32_t>();
  h.host = r.text();
  h.pid = r.number<int32_t>();
  h.version = r.text();
  return r.good() ? std::optional(h) : std::nullopt;
}

}  // namespace cleave::comm::wire
