#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

constexpr float kTwoRootTwoOverPi = 1.5957691216f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), which is accurate in the negative tail.
struct GeluTanh {
  CLEAVE_MEMBER F16 value(F16 x) {
    return x * sigmoid(x * kTwoRootTwoOverPi * fma(x * x, kCubic, splat(1.0f)));
  }
  CLEAVE_MEMBER F16 slope(F16 x) {
    const F16 square = x * x;
    const F16 inner = fma(square, 3 * kCubic, splat(1.0f)) * kTwoRootTwoOverPi;
    const F16 e = exp(min(splat(87.0f), negate(x) * kTwoRootTwoOverPi * fma(square, kCubic, splat(1.0f))));
    const F16 s = splat(1.0f) / (splat(1.0f) + e);
    // s (1 - s) = e s s without cancellation. x^2 may overflow where the limit of the product is 0.
    const F16 bent = select(abs(x) < splat(1e4f), x * inner * (e * s) * s, zero());
    return s + bent;
  }
};
struct GeluErf {
  CLEAVE_MEMBER F16 value(F16 x) { return x * normal(x).below; }
  CLEAVE_MEMBER F16 slope(F16 x) {
    const Normal n = normal(x);
    return fma(x, n.density, n.below);
  }
};
struct Relu {
  CLEAVE_MEMBER F16 value(F16 x) { return max(zero(), x); }
  CLEAVE_MEMBER F16 slope(F16 x) { return select(zero() < x, splat(1.0f), zero()); }
};

struct Silu {
  CLEAVE_MEMBER F16 value(F16 x) { return x * sigmoid(x); }
  // s (1 + x (1 - s)), s = sigmoid(x).
  CLEAVE_MEMBER F16 slope(F16 x) { return times_slope(splat(1.0f), x); }
  CLEAVE_MEMBER F16 times_slope(F16 d, F16 x) {
    const F16 s = sigmoid(x);
    return d * s * fma(x, splat(1.0f) - s, splat(1.0f));
  }
};

template <class F, class T>
void forward(const UnaryArgs& args) {
  T* y = static_cast<T*>(args.y.data);
  const T* x = static_cast<const T*>(args.x.data);
  parallel_vectors(args.numel, [=](int64_t i, auto n) { store(y + i, F::value(load(x + i, n)), n); });
}

template <class F, class T>
void backward(const UnaryArgs& args) {
  T* dx = static_cast<T*>(args.y.data);
  const T* x = static_cast<const T*>(args.x.data);
  const T* dy = static_cast<const T*>(args.dy.data);
  parallel_vectors(args.numel,
                   [=](int64_t i, auto n) { store(dx + i, load(dy + i, n) * F::slope(load(x + i, n)), n); });
}

template <class F, class T>
void gate_row(const GatedArgs& args, int64_t row) {
  const T *gate = static_cast<const T*>(args.x.data) + 2 * row * args.width, *up = gate + args.width;
  T* y = static_cast<T*>(args.y.data) + row * args.width;
  for_vectors(0, args.width,
              [=](int64_t i, auto n) { store(y + i, F::value(load(gate + i, n)) * load(up + i, n), n); });
}

template <class F, class T>
void gate_grad_row(const GatedArgs& args, int64_t row) {
  const int64_t width = args.width;
  const T *gate = static_cast<const T*>(args.x.data) + 2 * row * width, *up = gate + width;
  const T* dy = static_cast<const T*>(args.dy.data) + row * width;
  T *dgate = static_cast<T*>(args.y.data) + 2 * row * width, *dup = dgate + width;
  for_vectors(0, width, [=](int64_t i, auto n) {
    const F16 g = load(gate + i, n), u = load(up + i, n), d = load(dy + i, n);
    if constexpr (std::is_same_v<F, Silu>) {
      store(dgate + i, F::times_slope(d * u, g), n);
      store(dup + i, d * g * sigmoid(g), n);
    } else {
      store(dgate + i, d * u * F::slope(g), n);
      store(dup + i, d * F::value(g), n);
    }
  });
}

// Calls body(f, t) with the gate's function and a value of its type.
template <class Body>
void with_gate(const GatedArgs& args, Body body) {
  with_type(args.x.type, [&](auto t) {
    switch (args.kind) {
      case GateKind::silu:
        return body(Silu{}, t);
      case GateKind::gelu_tanh:
        return body(GeluTanh{}, t);
      case GateKind::gelu_erf:
        return body(GeluErf{}, t);
      case GateKind::relu:
        return body(Relu{}, t);
    }
  });
}

}  // namespace

void gated(const GatedArgs& args) {
  with_gate(args, [&](auto f, auto t) {
    parallel_rows(args.rows, args.width, [&](int64_t row) { gate_row<decltype(f), decltype(t)>(args, row); });
  });
}
void gated_grad(const GatedArgs& args) {
  with_gate(args, [&](auto f, auto t) {
    parallel_rows(args.rows, args.width,
                  [&](int64_t row) { gate_grad_row<decltype(f), decltype(t)>(args, row); });
  });
}

void soft_cap(const FactorArgs& args) {
  with_type(args.y.type, [&](auto t) {
    using T = decltype(t);
    const T* x = static_cast<const T*>(args.x.data);
    T* y = static_cast<T*>(args.y.data);
    const S16 cap = splat(args.factor), inverse = splat(1.0f / args.factor);
    parallel_vectors(args.numel,
                     [=](int64_t i, auto n) { store(y + i, tanh(load(x + i, n) * inverse) * cap, n); });
  });
}

void gelu_tanh(const UnaryArgs& a) {
  with_type(a.x.type, [&](auto t) { forward<GeluTanh, decltype(t)>(a); });
}
void gelu_erf(const UnaryArgs& a) {
  with_type(a.x.type, [&](auto t) { forward<GeluErf, decltype(t)>(a); });
}
void relu(const UnaryArgs& a) {
  with_type(a.x.type, [&](auto t) { forward<Relu, decltype(t)>(a); });
}
void silu(const UnaryArgs& a) {
  with_type(a.x.type, [&](auto t) { forward<Silu, decltype(t)>(a); });
}
void silu_grad(const UnaryArgs& a) {
  with_type(a.x.type, [&](auto t) { backward<Silu, decltype(t)>(a); });
}
void gelu_tanh_grad(const UnaryArgs& a) {
  with_type(a.x.type, [&](auto t) { backward<GeluTanh, decltype(t)>(a); });
}
void gelu_erf_grad(const UnaryArgs& a) {
  with_type(a.x.type, [&](auto t) { backward<GeluErf, decltype(t)>(a); });
}
void relu_grad(const UnaryArgs& a) {
  with_type(a.x.type, [&](auto t) { backward<Relu, decltype(t)>(a); });
}

void add(const AddArgs& args) {
  with_type(args.y.type, [&](auto t) {
    using T = decltype(t);
    T* y = static_cast<T*>(args.y.data);
    const T *a = static_cast<const T*>(args.a.data), *b = static_cast<const T*>(args.b.data);
    parallel_vectors(args.numel,
                     [=](int64_t i, auto n) { store(y + i, load(a + i, n) + load(b + i, n), n); });
  });
}

void dropout(const DropoutArgs& args) {
  with_type(args.y.type, [&](auto t) {
    using T = decltype(t);
    T* y = static_cast<T*>(args.y.data);
    const T* x = static_cast<const T*>(args.x.data);
    const S16 p = splat(args.p), kept = splat(1.0f / (1.0f - args.p));
    const PhiloxKey key{args.seed, args.stream};
    parallel_blocks(args.numel, 1024, [=](int64_t begin, int64_t end) {
      int words[1024 + 128];
      const uint64_t first = uint64_t(args.offset + begin);
      for (int64_t w = 0; w < end - begin + 20; w += 64)
        philox_words(key, (first + uint64_t(w)) / 4, words + w);
      const int* mine = words + first % 4;
      for_vectors(begin, end, [=](int64_t i, auto n) {
        const F16 uniform = to_float(shift_right<8>(load(mine + (i - begin)))) * 0x1p-24f;
        store(y + i, select(uniform >= p, load(x + i, n) * kept, zero()), n);
      });
    });
  });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
