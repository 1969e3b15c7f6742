// Large products of cases under sanitizers, which take ten times as long.
#pragma once

namespace cleave::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Picks every case, or one in seven of a build with sanitizers: no axis of a product has seven values, so
// every value of every axis is met.
class Sampled {
 public:
  bool next() { return !kSanitized || count_++ % 7 == 0; }

 private:
  int count_ = 0;
};

}  // namespace cleave::testing
