// Integer and floating-point arithmetic, comparisons, selections, conversions.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tests/cuda_interpreter/floats.h"
#include "tests/cuda_interpreter/ptx.h"
#include "tests/cuda_interpreter/warp.h"

namespace interpreter {
namespace {

using std::string_view;

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class D, class S, class F>
void one(Warp& w, const Instr& in, uint32_t mask) {
  D* d = w.at<D>(in.d);
  const S* a = w.at<S>(in.a);
  lanes(mask, [=](int i) { d[i] = D(F{}(a[i])); });
}
template <class D, class A, class B, class F>
void two(Warp& w, const Instr& in, uint32_t mask) {
  D* d = w.at<D>(in.d);
  const A* a = w.at<A>(in.a);
  const B* b = w.at<B>(in.b);
  lanes(mask, [=](int i) { d[i] = D(F{}(a[i], b[i])); });
}
template <class D, class A, class C, class F>
void three(Warp& w, const Instr& in, uint32_t mask) {
  D* d = w.at<D>(in.d);
  const A *a = w.at<A>(in.a), *b = w.at<A>(in.b);
  const C* c = w.at<C>(in.c);
  lanes(mask, [=](int i) { d[i] = D(F{}(a[i], b[i], c[i])); });
}
// Sets the rounding of vector registers for the whole loop; fesetround() takes as long as the loop.
template <int kRounding, Instr::Run run>
[[gnu::noinline]] void rounding(Warp& w, const Instr& in, uint32_t mask) {
  _MM_SET_ROUNDING_MODE(kRounding);
  asm volatile("" ::: "memory");  // keeps the loop in between
  run(w, in, mask);
  asm volatile("" ::: "memory");
  _MM_SET_ROUNDING_MODE(_MM_ROUND_NEAREST);
}

template <class T, class F>
Instr::Run unary(F) {
  return &one<T, T, F>;
}
template <class T, class F>
Instr::Run binary(F) {
  return &two<T, T, T, F>;
}
template <class T, class F>
Instr::Run ternary(F) {
  return &three<T, T, T, F>;
}

// Calls make(T{}) for the type's name; bits are unsigned numbers.
template <class Make>
Instr::Run over_integers(string_view t, Make make) {
  if (t == "s16") return make(int16_t{});
  if (t == "u16" || t == "b16") return make(uint16_t{});
  if (t == "s32") return make(int32_t{});
  if (t == "u32" || t == "b32") return make(uint32_t{});
  if (t == "s64") return make(int64_t{});
  if (t == "u64" || t == "b64") return make(uint64_t{});
  return nullptr;
}
template <class Make>
Instr::Run over_floats(string_view t, Make make) {
  if (t == "f32") return make(float{});
  if (t == "f64") return make(double{});
  return nullptr;
}
template <class Make>
Instr::Run over_numbers(string_view t, Make make) {
  const Instr::Run run = over_floats(t, make);
  return run ? run : over_integers(t, make);
}

template <class T>
T flushed(T x) {
  return std::fabs(x) < std::numeric_limits<T>::min() ? std::copysign(T(0), x) : x;
}

// Minimum (or maximum with kMost); a NaN gives the other operand, and -0 < 0.
template <class T, bool kMost>
T extreme(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    const Bits x = std::bit_cast<Bits>(a), y = std::bit_cast<Bits>(b);
    const T same = std::bit_cast<T>(kMost ? x & y : x | y);
    const T other = kMost ? (a > b ? a : b) : (a < b ? a : b);
    return a != a ? b : b != b ? a : a == b ? same : other;
  } else {
    return kMost ? (a > b ? a : b) : (a < b ? a : b);
  }
}

template <class T, bool kRest>
T divided(T a, T b) {
  if (b == 0) return kRest ? a : T(~T{});
  if constexpr (std::is_signed_v<T>)
    if (b == T(-1)) return kRest ? T(0) : T(0 - Unsigned<T>(a));
  return kRest ? a % b : a / b;
}

template <class T>
T multiplied_high(T a, T b) {
  using Wide =
      std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
                         std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
  return T((Wide(a) * Wide(b)) >> (sizeof(T) * 8));
}

template <class T>
T shifted(T a, uint32_t by, bool left) {
  constexpr uint32_t kBits = sizeof(T) * 8;
  if (left) return by >= kBits ? T(0) : T(Unsigned<T>(a) << by);
  if (by >= kBits) return std::is_signed_v<T> && a < 0 ? T(-1) : T(0);
  return T(a >> by);
}

Instr::Run integer(string_view name, const Statement& s) {
  const string_view t = s.type();
  if (name == "mul" && s.has("wide")) {
    if (t == "u32")
      return &two<uint64_t, uint32_t, uint32_t, decltype([](uint64_t a, uint64_t b) { return a * b; })>;
    if (t == "s32")
      return &two<int64_t, int32_t, int32_t, decltype([](int64_t a, int64_t b) { return a * b; })>;
    if (t == "u16")
      return &two<uint32_t, uint16_t, uint16_t, decltype([](uint32_t a, uint32_t b) { return a * b; })>;
    if (t == "s16")
      return &two<int32_t, int16_t, int16_t, decltype([](int32_t a, int32_t b) { return a * b; })>;
  }
  if (name == "mad" && s.has("wide")) {
    if (t == "u32")
      return &three<uint64_t, uint32_t, uint64_t,
                    decltype([](uint64_t a, uint64_t b, uint64_t c) { return a * b + c; })>;
    if (t == "s32")
      return &three<int64_t, int32_t, int64_t,
                    decltype([](int64_t a, int64_t b, int64_t c) { return a * b + c; })>;
  }
  const bool high = s.has("hi");
  return over_integers(t, [&](auto zero) -> Instr::Run {
    using T = decltype(zero);
    using U = Unsigned<T>;
    if (name == "add") return binary<T>([](T a, T b) { return T(U(a) + U(b)); });
    if (name == "sub") return binary<T>([](T a, T b) { return T(U(a) - U(b)); });
    if (name == "mul" && high) return binary<T>([](T a, T b) { return multiplied_high<T>(a, b); });
    if (name == "mul") return binary<T>([](T a, T b) { return T(uint64_t(U(a)) * uint64_t(U(b))); });
    if (name == "mad" && high)
      return ternary<T>([](T a, T b, T c) { return T(U(multiplied_high<T>(a, b)) + U(c)); });
    if (name == "mad")
      return ternary<T>([](T a, T b, T c) { return T(uint64_t(U(a)) * uint64_t(U(b)) + uint64_t(U(c))); });
    if (name == "div") return binary<T>([](T a, T b) { return divided<T, false>(a, b); });
    if (name == "rem") return binary<T>([](T a, T b) { return divided<T, true>(a, b); });
    if (name == "min") return binary<T>([](T a, T b) { return extreme<T, false>(a, b); });
    if (name == "max") return binary<T>([](T a, T b) { return extreme<T, true>(a, b); });
    if (name == "abs") return unary<T>([](T a) { return a < 0 ? T(0 - U(a)) : a; });
    if (name == "neg") return unary<T>([](T a) { return T(0 - U(a)); });
    if (name == "and") return binary<T>([](T a, T b) { return T(a & b); });
    if (name == "or") return binary<T>([](T a, T b) { return T(a | b); });
    if (name == "xor") return binary<T>([](T a, T b) { return T(a ^ b); });
    if (name == "not") return unary<T>([](T a) { return T(~a); });
    if (name == "shl")
      return &two<T, T, uint32_t, decltype([](T a, uint32_t b) { return shifted<T>(a, b, true); })>;
    if (name == "shr")
      return &two<T, T, uint32_t, decltype([](T a, uint32_t b) { return shifted<T>(a, b, false); })>;
    if constexpr (sizeof(T) >= 4) {
      if (name == "popc") return &one<uint32_t, U, decltype([](U a) { return std::popcount(a); })>;
      if (name == "clz") return &one<uint32_t, U, decltype([](U a) { return std::countl_zero(a); })>;
      if (name == "brev")
        return unary<T>([](T a) {
          U r = 0;
          for (size_t i = 0; i < sizeof(T) * 8; ++i) r = U(r << 1 | (U(a) >> i & 1));
          return T(r);
        });
    }
    return nullptr;
  });
}

Instr::Run directed(string_view name, const Statement& s) {
  constexpr auto kFma =
      &three<float, float, float, decltype([](float a, float b, float c) { return std::fma(a, b, c); })>;
  constexpr auto kAdd = &two<float, float, float, decltype([](float a, float b) { return a + b; })>;
  constexpr auto kMul = &two<float, float, float, decltype([](float a, float b) { return a * b; })>;
  if (s.type() != "f32") return nullptr;
  if (s.has("rm"))
    return name == "fma"   ? &rounding<_MM_ROUND_DOWN, kFma>
           : name == "add" ? &rounding<_MM_ROUND_DOWN, kAdd>
           : name == "mul" ? &rounding<_MM_ROUND_DOWN, kMul>
                           : nullptr;
  if (s.has("rp"))
    return name == "fma"   ? &rounding<_MM_ROUND_UP, kFma>
           : name == "add" ? &rounding<_MM_ROUND_UP, kAdd>
           : name == "mul" ? &rounding<_MM_ROUND_UP, kMul>
                           : nullptr;
  return name == "fma"   ? &rounding<_MM_ROUND_TOWARD_ZERO, kFma>
         : name == "add" ? &rounding<_MM_ROUND_TOWARD_ZERO, kAdd>
         : name == "mul" ? &rounding<_MM_ROUND_TOWARD_ZERO, kMul>
                         : nullptr;
}

// Instructions that are approximate on the hardware are computed as precisely as the host can.
Instr::Run approximate(string_view name, const Statement& s) {
  if (s.type() == "f32") {
    if (name == "ex2")
      return s.has("ftz") ? unary<float>([](float a) { return flushed(std::exp2(flushed(a))); })
                          : unary<float>([](float a) { return std::exp2(a); });
    if (name == "lg2") return unary<float>([](float a) { return std::log2(a); });
    if (name == "sin") return unary<float>([](float a) { return std::sin(a); });
    if (name == "cos") return unary<float>([](float a) { return std::cos(a); });
    if (name == "tanh") return unary<float>([](float a) { return std::tanh(a); });
    if (name == "rsqrt") return unary<float>([](float a) { return 1 / std::sqrt(a); });
  }
  // The result has only the upper word.
  if (name == "rcp" && s.has("ftz") && s.type() == "f64")
    return unary<double>([](double a) {
      return std::bit_cast<double>(std::bit_cast<uint64_t>(1 / flushed(a)) & ~0xffffffffull);
    });
  return over_floats(s.type(), [&](auto zero) -> Instr::Run {
    using T = decltype(zero);
    if (name == "rcp")
      return s.has("ftz") ? unary<T>([](T a) { return flushed(1 / flushed(a)); })
                          : unary<T>([](T a) { return 1 / a; });
    return nullptr;
  });
}

Instr::Run floating(string_view name, const Statement& s) {
  if (s.has("rm") || s.has("rp") || s.has("rz")) return directed(name, s);
  if (const Instr::Run run = approximate(name, s)) return run;
  if (name == "add" && s.has("sat") && s.type() == "f32")
    return binary<float>([](float a, float b) { return std::fmin(std::fmax(a + b, 0.0f), 1.0f); });
  if (s.has("sat")) return nullptr;
  const bool flushes = s.has("ftz");
  return over_floats(s.type(), [&](auto zero) -> Instr::Run {
    using T = decltype(zero);
    if (name == "add")
      return flushes ? binary<T>([](T a, T b) { return flushed(flushed(a) + flushed(b)); })
                     : binary<T>([](T a, T b) { return a + b; });
    if (name == "sub")
      return flushes ? binary<T>([](T a, T b) { return flushed(flushed(a) - flushed(b)); })
                     : binary<T>([](T a, T b) { return a - b; });
    if (name == "mul")
      return flushes ? binary<T>([](T a, T b) { return flushed(flushed(a) * flushed(b)); })
                     : binary<T>([](T a, T b) { return a * b; });
    if (name == "div")
      return flushes ? binary<T>([](T a, T b) { return flushed(flushed(a) / flushed(b)); })
                     : binary<T>([](T a, T b) { return a / b; });
    if (name == "fma")
      return flushes ? ternary<T>([](T a, T b, T c) {
        return flushed(std::fma(flushed(a), flushed(b), flushed(c)));
      })
                     : ternary<T>([](T a, T b, T c) { return std::fma(a, b, c); });
    if (name == "mad") return ternary<T>([](T a, T b, T c) { return std::fma(a, b, c); });
    if (name == "sqrt") return unary<T>([](T a) { return std::sqrt(a); });
    if (name == "abs") return unary<T>([](T a) { return std::fabs(a); });
    if (name == "neg") return unary<T>([](T a) { return -a; });
    if (name == "min") return binary<T>([](T a, T b) { return extreme<T, false>(a, b); });
    if (name == "max") return binary<T>([](T a, T b) { return extreme<T, true>(a, b); });
    if (name == "copysign") return binary<T>([](T a, T b) { return std::copysign(b, a); });
    return nullptr;
  });
}

// Masks of lanes.
void predicate_and(Warp& w, const Instr& in, uint32_t m) {
  uint32_t& d = *w.at<uint32_t>(in.d);
  d = (d & ~m) | (*w.at<uint32_t>(in.a) & *w.at<uint32_t>(in.b) & m);
}
void predicate_or(Warp& w, const Instr& in, uint32_t m) {
  uint32_t& d = *w.at<uint32_t>(in.d);
  d = (d & ~m) | ((*w.at<uint32_t>(in.a) | *w.at<uint32_t>(in.b)) & m);
}
void predicate_xor(Warp& w, const Instr& in, uint32_t m) {
  uint32_t& d = *w.at<uint32_t>(in.d);
  d = (d & ~m) | ((*w.at<uint32_t>(in.a) ^ *w.at<uint32_t>(in.b)) & m);
}
void predicate_not(Warp& w, const Instr& in, uint32_t m) {
  uint32_t& d = *w.at<uint32_t>(in.d);
  d = (d & ~m) | (~*w.at<uint32_t>(in.a) & m);
}
void predicate_move(Warp& w, const Instr& in, uint32_t m) {
  uint32_t& d = *w.at<uint32_t>(in.d);
  d = (d & ~m) | (*w.at<uint32_t>(in.a) & m);
}

Instr::Run of_predicates(string_view name) {
  if (name == "and") return &predicate_and;
  if (name == "or") return &predicate_or;
  if (name == "xor") return &predicate_xor;
  if (name == "not") return &predicate_not;
  if (name == "mov") return &predicate_move;
  return nullptr;
}

// number: 0 none, 1 and, 2 or, 3 xor with the predicate c; bit 2 negates c. The second result is
// list[0].
template <class T, class F>
void compare(Warp& w, const Instr& in, uint32_t mask) {
  const T *a = w.at<T>(in.a), *b = w.at<T>(in.b);
  uint32_t result = 0;
  for (int i = 0; i < 32; ++i) result |= uint32_t(F{}(a[i], b[i])) << i;
  uint32_t opposite = ~result;
  if (const int64_t with = in.number & 3) {
    const uint32_t c = *w.at<uint32_t>(in.c) ^ (in.number & 4 ? ~0u : 0u);
    const auto joined = [&](uint32_t x) { return with == 1 ? x & c : with == 2 ? x | c : x ^ c; };
    result = joined(result), opposite = joined(opposite);
  }
  uint32_t& d = *w.at<uint32_t>(in.d);
  d = (d & ~mask) | (result & mask);
  if (in.list.empty()) return;
  uint32_t& q = *w.at<uint32_t>(in.list[0]);
  q = (q & ~mask) | (opposite & mask);
}

Instr::Run comparison(string_view how, string_view t) {
  const Instr::Run run = over_numbers(t, [&](auto zero) -> Instr::Run {
    using T = decltype(zero);
    if (how == "eq") return &compare<T, decltype([](T a, T b) { return a == b; })>;
    if (how == "lt" || how == "lo") return &compare<T, decltype([](T a, T b) { return a < b; })>;
    if (how == "le" || how == "ls") return &compare<T, decltype([](T a, T b) { return a <= b; })>;
    if (how == "gt" || how == "hi") return &compare<T, decltype([](T a, T b) { return a > b; })>;
    if (how == "ge" || how == "hs") return &compare<T, decltype([](T a, T b) { return a >= b; })>;
    if constexpr (std::is_floating_point_v<T>) {
      if (how == "ne") return &compare<T, decltype([](T a, T b) { return a < b || a > b; })>;
      if (how == "equ") return &compare<T, decltype([](T a, T b) { return !(a < b || a > b); })>;
      if (how == "neu") return &compare<T, decltype([](T a, T b) { return a != b; })>;
      if (how == "ltu") return &compare<T, decltype([](T a, T b) { return !(a >= b); })>;
      if (how == "leu") return &compare<T, decltype([](T a, T b) { return !(a > b); })>;
      if (how == "gtu") return &compare<T, decltype([](T a, T b) { return !(a <= b); })>;
      if (how == "geu") return &compare<T, decltype([](T a, T b) { return !(a < b); })>;
      if (how == "num") return &compare<T, decltype([](T a, T b) { return a == a && b == b; })>;
      if (how == "nan") return &compare<T, decltype([](T a, T b) { return a != a || b != b; })>;
    } else if (how == "ne") {
      return &compare<T, decltype([](T a, T b) { return a != b; })>;
    }
    return nullptr;
  });
  return run;
}

template <class T>
void select(Warp& w, const Instr& in, uint32_t mask) {
  T* d = w.at<T>(in.d);
  const T *a = w.at<T>(in.a), *b = w.at<T>(in.b);
  const uint32_t p = *w.at<uint32_t>(in.c);
  lanes(mask, [=](int i) { d[i] = p >> i & 1 ? a[i] : b[i]; });
}

template <class T>
void move(Warp& w, const Instr& in, uint32_t mask) {
  T* d = w.at<T>(in.d);
  const T* a = w.at<T>(in.a);
  lanes(mask, [=](int i) { d[i] = a[i]; });
}
// Joins parts of type P to a register of type D, and splits it.
template <class D, class P>
void join(Warp& w, const Instr& in, uint32_t mask) {
  D* d = w.at<D>(in.d);
  lanes(mask, [&](int i) {
    D x = 0;
    for (size_t k = 0; k < in.list.size(); ++k) x |= D(D(w.at<P>(in.list[k])[i]) << (k * sizeof(P) * 8));
    d[i] = x;
  });
}
template <class D, class P>
void part(Warp& w, const Instr& in, uint32_t mask) {
  const D* a = w.at<D>(in.a);
  lanes(mask, [&](int i) {
    const D x = a[i];
    for (size_t k = 0; k < in.list.size(); ++k) w.at<P>(in.list[k])[i] = P(x >> (k * sizeof(P) * 8));
  });
}

bool decode_move(Decoder& d, const Statement& s, Instr& in) {
  const string_view t = s.type();
  const std::string &to = s.operands[0], &from = s.operands[1];
  const bool gathers = from.starts_with("{"), scatters = to.starts_with("{");
  if (gathers || scatters) {
    const auto elements = d.elements(gathers ? from : to);
    const int parts = int(elements.size()), bytes = bytes_of(t);
    for (const auto& e : elements)
      in.list.push_back(gathers ? d.read(e, bytes / parts == 4 ? "u32" : "u16") : d.write(e));
    in.writes_list = scatters;
    (gathers ? in.d : in.a) = gathers ? d.write(to) : d.read(from, t);
    if (bytes == 4)
      in.run = gathers ? &join<uint32_t, uint16_t> : &part<uint32_t, uint16_t>;
    else if (parts == 2)
      in.run = gathers ? &join<uint64_t, uint32_t> : &part<uint64_t, uint32_t>;
    else
      in.run = gathers ? &join<uint64_t, uint16_t> : &part<uint64_t, uint16_t>;
    return true;
  }
  in.d = d.write(to), in.a = d.read(from, t);
  const int bytes = bytes_of(t);
  in.run = bytes == 0   ? &predicate_move
           : bytes == 2 ? &move<uint16_t>
           : bytes == 4 ? &move<uint32_t>
                        : &move<uint64_t>;
  return true;
}

// (b & ~field) | (a << position & field); list: position, length.
template <class T>
void insert_bits(Warp& w, const Instr& in, uint32_t mask) {
  lanes(mask, [&](int i) {
    const uint32_t position = w.at<uint32_t>(in.list[0])[i] & 255,
                   length = w.at<uint32_t>(in.list[1])[i] & 255;
    constexpr uint32_t kBits = sizeof(T) * 8;
    const T ones = length >= kBits ? T(~T{}) : T((T{1} << length) - 1),
            field = position >= kBits ? T{} : T(ones << position);
    const T a = w.at<T>(in.a)[i], b = w.at<T>(in.b)[i];
    w.at<T>(in.d)[i] = (b & ~field) | (position >= kBits ? T{} : T(a << position) & field);
  });
}
template <class T>
void extract_bits(Warp& w, const Instr& in, uint32_t mask) {
  lanes(mask, [&](int i) {
    constexpr uint32_t kBits = sizeof(T) * 8;
    const uint32_t position = w.at<uint32_t>(in.b)[i] & 255, length = w.at<uint32_t>(in.c)[i] & 255;
    const T a = w.at<T>(in.a)[i];
    Unsigned<T> x = 0;
    for (uint32_t k = 0; k < std::min(length, kBits); ++k) {
      const uint32_t from = std::min(position + k, kBits - 1);
      const bool inside = position + k < kBits;
      const bool bit = inside ? Unsigned<T>(a) >> from & 1 : std::is_signed_v<T> && a < 0;
      x |= Unsigned<T>(bit) << k;
    }
    if (std::is_signed_v<T> && length > 0 && length < kBits && (x >> (length - 1) & 1))
      x |= Unsigned<T>(~Unsigned<T>{} << length);
    w.at<T>(in.d)[i] = T(x);
  });
}
void lut(Warp& w, const Instr& in, uint32_t mask) {
  lanes(mask, [&](int i) {
    const uint32_t a = w.at<uint32_t>(in.a)[i], b = w.at<uint32_t>(in.b)[i], c = w.at<uint32_t>(in.c)[i];
    uint32_t x = 0;
    for (int k = 0; k < 8; ++k)
      if (in.number >> k & 1) x |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
    w.at<uint32_t>(in.d)[i] = x;
  });
}
void permute(Warp& w, const Instr& in, uint32_t mask) {
  lanes(mask, [&](int i) {
    const uint64_t both = uint64_t(w.at<uint32_t>(in.b)[i]) << 32 | w.at<uint32_t>(in.a)[i];
    const uint32_t choice = w.at<uint32_t>(in.c)[i];
    uint32_t x = 0;
    for (int k = 0; k < 4; ++k) {
      const uint32_t which = choice >> (4 * k) & 15, byte = uint32_t(both >> (which & 7) * 8) & 255;
      x |= (which & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * k);
    }
    w.at<uint32_t>(in.d)[i] = x;
  });
}
void bit_mask(Warp& w, const Instr& in, uint32_t mask) {
  lanes(mask, [&](int i) {
    const uint32_t begin = w.at<uint32_t>(in.a)[i], length = std::min(w.at<uint32_t>(in.b)[i], 32u);
    const uint32_t ones = length == 32 ? ~0u : (1u << length) - 1;
    w.at<uint32_t>(in.d)[i] = begin >= 32 ? 0 : ones << begin;
  });
}
template <bool kLeft>
void funnel(Warp& w, const Instr& in, uint32_t mask) {
  lanes(mask, [&](int i) {
    const uint64_t both = uint64_t(w.at<uint32_t>(in.b)[i]) << 32 | w.at<uint32_t>(in.a)[i];
    const uint32_t by = in.number ? std::min(w.at<uint32_t>(in.c)[i], 32u) : w.at<uint32_t>(in.c)[i] & 31;
    w.at<uint32_t>(in.d)[i] = kLeft ? uint32_t((both << by) >> 32) : uint32_t(both >> by);
  });
}

bool decode_bits(Decoder& d, const Statement& s, Instr& in, string_view name) {
  const auto& o = s.operands;
  const string_view t = s.type();
  if (name == "bfi") {
    in.list = {d.read(o[3], "u32"), d.read(o[4], "u32")};
    in.run = t == "b64" ? &insert_bits<uint64_t> : &insert_bits<uint32_t>;
  } else if (name == "bfe") {
    in.b = d.read(o[2], "u32"), in.c = d.read(o[3], "u32");
    in.run = over_integers(t, [](auto zero) -> Instr::Run {
      if constexpr (sizeof zero >= 4) return &extract_bits<decltype(zero)>;
      return nullptr;
    });
    in.d = d.write(o[0]), in.a = d.read(o[1], t);
    return true;
  } else if (name == "lop3") {
    in.run = &lut, in.number = d.number(o[4]);
  } else if (name == "prmt" && s.op == "prmt.b32") {
    in.run = &permute;
  } else if (name == "bmsk" && s.has("clamp")) {
    in.run = &bit_mask;
  } else if (name == "shf") {
    in.run = s.has("l") ? &funnel<true> : &funnel<false>, in.number = s.has("clamp");
  } else {
    return false;
  }
  in.d = d.write(o[0]), in.a = d.read(o[1], t), in.b = d.read(o[2], t);
  if (o.size() > 3 && name != "bfi") in.c = d.read(o[3], t);
  return true;
}

bool decode_comparison(Decoder& d, const Statement& s, Instr& in) {
  const auto& o = s.operands;
  const size_t bar = o[0].find('|');
  in.d = d.write(o[0].substr(0, bar));
  if (bar != std::string::npos) in.list = {d.write(o[0].substr(bar + 1))}, in.writes_list = true;
  in.a = d.read(o[1], s.type()), in.b = d.read(o[2], s.type());
  in.number = s.has("and") ? 1 : s.has("or") ? 2 : s.has("xor") ? 3 : 0;
  if (in.number) {
    bool negated = false;
    in.c = d.predicate(o[3], negated);
    in.number |= negated ? 4 : 0;
  }
  in.run = comparison(s.parts[1], s.type());
  return in.run != nullptr;
}

}  // namespace

bool decode_arithmetic(Decoder& d, const Statement& s, Instr& in) {
  const string_view name = s.parts[0], t = s.type();
  const auto& o = s.operands;
  if (name == "mov") return decode_move(d, s, in);
  if (name == "cvta") {  // generic addresses differ only for a block's memory
    if (s.has("shared")) return false;
    in.run = &move<uint64_t>, in.d = d.write(o[0]), in.a = d.read(o[1], "u64");
    return true;
  }
  if (name == "setp") return decode_comparison(d, s, in);
  if (name == "selp") {
    in.d = d.write(o[0]), in.a = d.read(o[1], t), in.b = d.read(o[2], t), in.c = d.read(o[3], "pred");
    in.run = bytes_of(t) == 2 ? &select<uint16_t> : bytes_of(t) == 4 ? &select<uint32_t> : &select<uint64_t>;
    return true;
  }
  if (decode_bits(d, s, in, name)) return true;
  in.run = t == "pred"                ? of_predicates(name)
           : t == "f32" || t == "f64" ? floating(name, s)
                                      : integer(name, s);
  if (!in.run) return false;
  const bool shift = name == "shl" || name == "shr";
  in.d = d.write(o[0]), in.a = d.read(o[1], t);
  if (o.size() > 2) in.b = d.read(o[2], shift ? "u32" : t);
  if (o.size() > 3) in.c = d.read(o[3], s.has("wide") ? (t[0] == 'u' ? "u64" : "s64") : t);
  return true;
}

}  // namespace interpreter
