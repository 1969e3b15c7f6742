// Writes JSON to a descriptor with async-signal-safe calls only, for signal handlers. The caller writes a
// valid sequence; commas are added.
#pragma once
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string_view>

namespace cleave::launcher {

class RawJson {
 public:
  explicit RawJson(int fd) : fd_(fd) {}
  ~RawJson() { flush(); }
  RawJson(const RawJson&) = delete;
  RawJson& operator=(const RawJson&) = delete;

  void open(char bracket) { separate(), put(bracket), first_ = true; }
  void close(char bracket) { put(bracket), first_ = false; }
  void key(std::string_view name) { text(name), put(':'), first_ = true; }
  void null() { separate(), put("null"); }
  void number(int64_t value) {
    separate();
    if (value < 0) put('-');
    digits(value < 0 ? -uint64_t(value) : uint64_t(value));
  }
  // Bytes outside of ASCII become question marks.
  void text(std::string_view value) { begin_text(), more_text(value), end_text(); }
  void begin_text() { separate(), put('"'); }
  void more_text(std::string_view value) {
    for (const char c : value) character(c);
  }
  void end_text() { put('"'), first_ = false; }

  // False if a write failed.
  bool flush() {
    for (size_t at = 0; at < used_ && good_;) {
      const ssize_t n = write(fd_, buffer_.data() + at, used_ - at);
      good_ = n > 0;
      at += good_ ? size_t(n) : 0;
    }
    used_ = 0;
    return good_;
  }

 private:
  void separate() {
    if (!first_) put(',');
    first_ = false;
  }
  void put(char c) {
    if (used_ == buffer_.size()) flush();
    buffer_[used_++] = c;
  }
  void put(std::string_view s) {
    for (const char c : s) put(c);
  }
  void digits(uint64_t value) {
    char reversed[20];
    int n = 0;
    do reversed[n++] = char('0' + value % 10);
    while (value /= 10);
    while (n > 0) put(reversed[--n]);
  }
  void character(char c) {
    constexpr std::string_view hex = "0123456789abcdef";
    if (c == '"' || c == '\\') put('\\');
    if (c < 0)
      put('?');
    else if (c < ' ')
      put("\\u00"), put(hex[size_t(c) >> 4]), put(hex[size_t(c) & 15]);
    else
      put(c);
  }

  const int fd_;
  bool first_ = true, good_ = true;
  size_t used_ = 0;
  std::array<char, 2048> buffer_;
};

}  // namespace cleave::launcher
