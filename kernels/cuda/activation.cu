#include "kernels/activation.h"

#include "kernels/cuda/device.cuh"

namespace cleave::kernels::gpu {
namespace {

constexpr float kTwoRootTwoOverPi = 1.5957691216f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), which is accurate in the negative tail.
template <class T>
__device__ __forceinline__ float gelu_tanh(float x) {
  return quotient<T>(x, 1.0f + exponential<T>(-x * kTwoRootTwoOverPi * fmaf(x * x, kCubic, 1.0f)));
}
template <class T>
__device__ __forceinline__ float gelu_tanh_slope(float x) {
  const float square = x * x;
  const float inner = fmaf(square, 3 * kCubic, 1.0f) * kTwoRootTwoOverPi;
  const float e = exponential<T>(fminf(87.0f, -x * kTwoRootTwoOverPi * fmaf(square, kCubic, 1.0f)));
  const float s = quotient<T>(1.0f, 1.0f + e);
  // s (1 - s) = e s s without cancellation. x^2 may overflow where the limit of the product is 0.
  return s + (fabsf(x) < 1e4f ? x * inner * (e * s) * s : 0.0f);
}

template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  return quotient<T>(1.0f, 1.0f + exponential<T>(-x));
}

template <class T>
__device__ __forceinline__ float value(Activation kind, float x) {
  if (kind == Activation::gelu_tanh) return gelu_tanh<T>(x);
  if (kind == Activation::gelu_erf) return x * normcdff(x);
  if (kind == Activation::silu) return x * sigmoid<T>(x);
  return x < 0 ? 0.0f : x;  // fmaxf would convert NaN to 0
}
template <class T>
__device__ __forceinline__ float slope(Activation kind, float x) {
  if (kind == Activation::gelu_tanh) return gelu_tanh_slope<T>(x);
  if (kind == Activation::gelu_erf) return fmaf(x, 0.39894228f * expf(-0.5f * x * x), normcdff(x));
  if (kind == Activation::silu) {
    const float s = sigmoid<T>(x);
    return s * fmaf(x, 1.0f - s, 1.0f);
  }
  return x > 0 ? 1.0f : 0.0f;
}

template <class T>
struct Forward {
  T* y;
  const T* x;
  Activation kind;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float v[N];
    load(v, x + i);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = value<T>(kind, v[j]);
    store(y + i, v);
  }
};

template <class T>
struct Backward {
  T* dx;
  const T *dy, *x;
  Activation kind;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float v[N], d[N];
    load(v, x + i);
    load(d, dy + i);
#pragma unroll
    for (int j = 0; j < N; ++j) d[j] *= slope<T>(kind, v[j]);
    store(dx + i, d);
  }
};

// A row of x holds `width` gates, then their factors. With silu the function is a compile-time constant.
template <class T, bool kSilu>
struct Gate {
  T* y;
  const T* x;
  int64_t width;
  Activation kind;

  template <int N>
  __device__ void operator()(int64_t row, int column, Count<N>) const {
    const T* gate = x + row * 2 * width + column;
    float g[N], u[N];
    load(g, gate);
    load(u, gate + width);
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] = value<T>(kSilu ? Activation::silu : kind, g[j]) * u[j];
    store(y + row * width + column, g);
  }
};

template <class T, bool kSilu>
struct GateGradient {
  T* dx;
  const T *dy, *x;
  int64_t width;
  Activation kind;

  template <int N>
  __device__ void operator()(int64_t row, int column, Count<N>) const {
    const int64_t at = row * 2 * width + column;
    float g[N], u[N], d[N];
    load(g, x + at);
    load(u, x + at + width);
    load(d, dy + row * width + column);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if constexpr (kSilu) {
        const float s = sigmoid<T>(g[j]);
        u[j] = d[j] * u[j] * s * fmaf(g[j], 1.0f - s, 1.0f);
        d[j] = d[j] * g[j] * s;
      } else {
        u[j] = d[j] * u[j] * slope<T>(kind, g[j]);
        d[j] = d[j] * value<T>(kind, g[j]);
      }
    }
    store(dx + at, u);
    store(dx + at + width, d);
  }
};

template <class T>
struct Capped {
  T* y;
  const T* x;
  float cap, inverse;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float v[N];
    load(v, x + i);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = cap * tanhf(v[j] * inverse);
    store(y + i, v);
  }
};

template <class T>
struct Sum2 {
  T* y;
  const T *a, *b;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float u[N], v[N];
    load(u, a + i);
    load(v, b + i);
#pragma unroll
    for (int j = 0; j < N; ++j) u[j] += v[j];
    store(y + i, u);
  }
};

// Elements first + i .. first + i + N - 1 of the sequence; a Philox block serves four of them.
template <class T>
struct Drop {
  T* y;
  const T* x;
  float p, kept;
  Philox philox;
  uint64_t first;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float v[N];
    load(v, x + i);
    const uint64_t begin = first + uint64_t(i);
    auto words = philox.block(begin / 4);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const uint32_t at = uint32_t(begin + j) % 4;
      if (j > 0 && at == 0) words = philox.block((begin + j) / 4);
      const uint32_t word = at == 0 ? words[0] : at == 1 ? words[1] : at == 2 ? words[2] : words[3];
      v[j] = float(word >> 8) * 0x1p-24f >= p ? v[j] * kept : 0.0f;
    }
    store(y + i, v);
  }
};

// Calls body(t, silu) with a value of the type and whether the gate is a constant.
template <class Body>
void with_gate(DType type, Activation kind, Body body) {
  with_type(type, [&](auto t) {
    if (kind == Activation::silu) return body(t, std::true_type{});
    body(t, std::false_type{});
  });
}

}  // namespace

void run(const ActivationForward& op, Stream& stream) {
  with_type(op.x.dtype(), [&](auto t) {
    using T = decltype(t);
    for_each<kPackOf<T>>(cuda_queue(stream), op.x.numel(), aligned({op.y, op.x}), "ActivationForward",
                         Forward<T>{as<T>(op.y), as<T>(op.x), op.kind});
  });
}

void run(const ActivationBackward& op, Stream& stream) {
  with_type(op.x.dtype(), [&](auto t) {
    using T = decltype(t);
    for_each<kPackOf<T>>(cuda_queue(stream), op.x.numel(), aligned({op.dx, op.dy, op.x}),
                         "ActivationBackward", Backward<T>{as<T>(op.dx), as<T>(op.dy), as<T>(op.x), op.kind});
  });
}

void run(const GatedForward& op, Stream& stream) {
  const int64_t width = op.y.dim(1);
  with_gate(op.y.dtype(), op.kind, [&](auto t, auto silu) {
    using T = decltype(t);
    for_each_of_rows<kPackOf<T>>(cuda_queue(stream), op.y.dim(0), width,
                                 width % kPackOf<T> == 0 && aligned({op.y, op.x}), "GatedForward",
                                 Gate<T, silu.value>{as<T>(op.y), as<T>(op.x), width, op.kind});
  });
}

void run(const GatedBackward& op, Stream& stream) {
  const int64_t width = op.dy.dim(1);
  with_gate(op.dy.dtype(), op.kind, [&](auto t, auto silu) {
    using T = decltype(t);
    for_each_of_rows<kPackOf<T>>(
        cuda_queue(stream), op.dy.dim(0), width, width % kPackOf<T> == 0 && aligned({op.dx, op.dy, op.x}),
        "GatedBackward",
        GateGradient<T, silu.value>{as<T>(op.dx), as<T>(op.dy), as<T>(op.x), width, op.kind});
  });
}

void run(const SoftCap& op, Stream& stream) {
  with_type(op.x.dtype(), [&](auto t) {
    using T = decltype(t);
    for_each<kPackOf<T>>(cuda_queue(stream), op.x.numel(), aligned({op.y, op.x}), "SoftCap",
                         Capped<T>{as<T>(op.y), as<T>(op.x), op.cap, 1.0f / op.cap});
  });
}

void run(const Add& op, Stream& stream) {
  with_type(op.y.dtype(), [&](auto t) {
    using T = decltype(t);
    for_each<kPackOf<T>>(cuda_queue(stream), op.y.numel(), aligned({op.y, op.a, op.b}), "Add",
                         Sum2<T>{as<T>(op.y), as<T>(op.a), as<T>(op.b)});
  });
}

void run(const Dropout& op, Stream& stream) {
  with_type(op.y.dtype(), [&](auto t) {
    using T = decltype(t);
    for_each<kPackOf<T>>(
        cuda_queue(stream), op.y.numel(), aligned({op.y, op.x}), "Dropout",
        Drop<T>{as<T>(op.y), as<T>(op.x), op.p, 1.0f / (1.0f - op.p), op.philox, uint64_t(op.offset)});
  });
}

}  // namespace cleave::kernels::gpu
