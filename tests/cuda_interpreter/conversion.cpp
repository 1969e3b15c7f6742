// cvt: between integers, floating-point numbers and registers of several widths.
#include <cmath>
#include <limits>
#include <type_traits>

#include "tests/cuda_interpreter/floats.h"
#include "tests/cuda_interpreter/ptx.h"
#include "tests/cuda_interpreter/warp.h"

namespace interpreter {
namespace {

using std::string_view;

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

template <class T>
float widened(T x) {
  if constexpr (std::is_same_v<T, Bf16>)
    return from_bf16(x.bits);
  else
    return from_fp16(x.bits);
}
template <class T>
T narrowed(float x) {
  if constexpr (std::is_same_v<T, Bf16>)
    return {to_bf16(x)};
  else
    return {to_fp16(x)};
}
template <class T>
constexpr bool kSmall = std::is_same_v<T, Bf16> || std::is_same_v<T, Fp16>;

enum class Way { plain, nearest, zero, down, up, saturated };

template <Way way, class T>
T whole(T x) {
  if constexpr (way == Way::nearest)
    return std::nearbyint(x);
  else if constexpr (way == Way::zero)
    return std::trunc(x);
  else if constexpr (way == Way::down)
    return std::floor(x);
  else if constexpr (way == Way::up)
    return std::ceil(x);
  else
    return x;
}

template <class D, class S, Way way>
D converted(S x) {
  if constexpr (kSmall<S>) {
    if constexpr (std::is_same_v<D, S>)
      return x;
    else
      return converted<D, float, way>(widened(x));
  } else if constexpr (kSmall<D>) {
    return narrowed<D>(float(x));
  } else if constexpr (std::is_floating_point_v<S> && std::is_integral_v<D>) {
    const S y = whole<way>(x);
    if (!(y == y)) return 0;
    if (y <= S(std::numeric_limits<D>::min())) return std::numeric_limits<D>::min();
    if (y >= S(std::numeric_limits<D>::max())) return std::numeric_limits<D>::max();
    return D(y);
  } else if constexpr (std::is_floating_point_v<S> && way == Way::saturated) {
    return D(x > 0 ? (x < 1 ? x : S(1)) : S(0));
  } else if constexpr (std::is_floating_point_v<S> && std::is_same_v<S, D>) {
    return whole<way>(x);
  } else {
    return D(x);
  }
}

// Reads a register, which may be wider than its integer.
template <class S, class Q>
S taken(Q bits) {
  if constexpr (kSmall<S>)
    return {uint16_t(bits)};
  else if constexpr (std::is_integral_v<S>)
    return S(bits);
  else
    return std::bit_cast<S>(bits);
}
template <class R, class D>
R stored(D x) {
  if constexpr (kSmall<D>)
    return R(x.bits);
  else if constexpr (std::is_signed_v<D> && std::is_integral_v<D>)
    return R(int64_t(x));
  else if constexpr (std::is_integral_v<D>)
    return R(x);
  else
    return std::bit_cast<R>(x);
}

template <class D, class S, Way way, class R, class Q>
void convert(Warp& w, const Instr& in, uint32_t mask) {
  R* d = w.at<R>(in.d);
  const Q* a = w.at<Q>(in.a);
  lanes(mask, [=](int i) { d[i] = stored<R>(converted<D, S, way>(taken<S>(a[i]))); });
}

template <int kBytes>
using Bits = std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>;

template <class D, class S, Way way>
Instr::Run of_width(int to, int from) {
  if constexpr (!(std::is_integral_v<D> && std::is_integral_v<S>)) {
    constexpr int kTo = std::is_integral_v<D> ? int(sizeof(D) < 2 ? 2 : sizeof(D)) : int(sizeof(D)),
                  kFrom = std::is_integral_v<S> ? int(sizeof(S) < 2 ? 2 : sizeof(S)) : int(sizeof(S));
    if (to == kTo && from == kFrom) return &convert<D, S, way, Bits<kTo>, Bits<kFrom>>;
    if constexpr (kFrom == 2)
      if (to == kTo && from == 4) return &convert<D, S, way, Bits<kTo>, uint32_t>;
    return nullptr;
  } else {
    const auto from_is = [&]<class R>(R) -> Instr::Run {
      return from == 2   ? &convert<D, S, way, R, uint16_t>
             : from == 4 ? &convert<D, S, way, R, uint32_t>
                         : &convert<D, S, way, R, uint64_t>;
    };
    return to == 2 ? from_is(uint16_t{}) : to == 4 ? from_is(uint32_t{}) : from_is(uint64_t{});
  }
}

template <class Make>
Instr::Run over_types(string_view t, Make make) {
  if (t == "u8") return make(uint8_t{});
  if (t == "s8") return make(int8_t{});
  if (t == "u16") return make(uint16_t{});
  if (t == "s16") return make(int16_t{});
  if (t == "u32") return make(uint32_t{});
  if (t == "s32") return make(int32_t{});
  if (t == "u64") return make(uint64_t{});
  if (t == "s64") return make(int64_t{});
  if (t == "f16") return make(Fp16{});
  if (t == "bf16") return make(Bf16{});
  if (t == "f32") return make(float{});
  if (t == "f64") return make(double{});
  return nullptr;
}

template <class D, class S>
Instr::Run of_way(Way way, int to, int from) {
  if constexpr (std::is_floating_point_v<S> && (std::is_integral_v<D> || std::is_same_v<S, D>)) {
    if (way == Way::nearest) return of_width<D, S, Way::nearest>(to, from);
    if (way == Way::zero) return of_width<D, S, Way::zero>(to, from);
    if (way == Way::down) return of_width<D, S, Way::down>(to, from);
    if (way == Way::up) return of_width<D, S, Way::up>(to, from);
  }
  if constexpr (std::is_floating_point_v<S> && std::is_same_v<S, D>)
    if (way == Way::saturated) return of_width<D, S, Way::saturated>(to, from);
  return way == Way::plain ? of_width<D, S, Way::plain>(to, from) : nullptr;
}

// Converts two floats; the first goes into the upper half.
template <class T>
void convert_pair(Warp& w, const Instr& in, uint32_t mask) {
  const float *high = w.at<float>(in.a), *low = w.at<float>(in.b);
  uint32_t* d = w.at<uint32_t>(in.d);
  lanes(mask, [=](int i) { d[i] = uint32_t(narrowed<T>(high[i]).bits) << 16 | narrowed<T>(low[i]).bits; });
}

// Converts two floats to 16 bits with saturation to the largest number.
template <const SmallFloats& type>
void convert_small_pair(Warp& w, const Instr& in, uint32_t mask) {
  const float *high = w.at<float>(in.a), *low = w.at<float>(in.b);
  uint16_t* d = w.at<uint16_t>(in.d);
  lanes(mask, [=](int i) { d[i] = uint16_t(type.to(high[i]) << 8 | type.to(low[i])); });
}

}  // namespace

bool decode_conversion(Decoder& d, const Statement& s, Instr& in) {
  if (s.parts[0] != "cvt" || s.parts.size() < 3) return false;
  const string_view to = s.parts[s.parts.size() - 2], from = s.type();
  in.d = d.write(s.operands[0]), in.a = d.read(s.operands[1], from);
  if (s.operands.size() == 3) {
    in.b = d.read(s.operands[2], from);
    if (s.has("satfinite") && s.has("rn") && from == "f32" && d.width(s.operands[0]) == 2) {
      in.run = to == "e4m3x2" ? &convert_small_pair<kE4M3> : &convert_small_pair<kE5M2>;
      return to == "e4m3x2" || to == "e5m2x2";
    }
    in.run = to == "bf16x2" ? &convert_pair<Bf16> : &convert_pair<Fp16>;
    return s.has("rn") && from == "f32" && (to == "bf16x2" || to == "f16x2");
  }
  if (s.has("rz") || s.has("rm") || s.has("rp") || s.has("rna")) return false;
  const Way way = s.has("rni")   ? Way::nearest
                  : s.has("rzi") ? Way::zero
                  : s.has("rmi") ? Way::down
                  : s.has("rpi") ? Way::up
                  : s.has("sat") ? Way::saturated
                                 : Way::plain;
  const int target = d.width(s.operands[0]),
            source = d.is_register(s.operands[1]) ? d.width(s.operands[1]) : bytes_of(from);
  in.run = over_types(to, [&](auto a) {
    return over_types(from, [&](auto b) { return of_way<decltype(a), decltype(b)>(way, target, source); });
  });
  return in.run != nullptr;
}

}  // namespace interpreter
