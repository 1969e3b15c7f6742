// Large products of cases under sanitizers, which take ten times as long.
#pragma once
#include <vector>

namespace cleave::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Picks every case, or one in eleven of a build with sanitizers: no axis of a product has eleven values, so
// every value of every axis is met. Tests that run a product each for their parameters begin at other places.
class Sampled {
 public:
  explicit Sampled(int first = 0) : count_(first) {}
  bool next() { return !kSanitized || count_++ % 11 == 0; }
  // Of these.
  template <class T>
  std::vector<T> of(const std::vector<T>& all) {
    std::vector<T> picked;
    for (const T& one : all)
      if (next()) picked.push_back(one);
    return picked;
  }

 private:
  int count_;
};

}  // namespace cleave::testing
