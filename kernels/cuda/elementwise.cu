#include "kernels/elementwise.h"

#include "device/copy.h"
#include "device/fp8.h"
#include "kernels/cuda/device.cuh"

namespace cleave::kernels::gpu {
namespace {

template <class Y, class X>
struct Convert {
  Y* y;
  const X* x;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float v[N];
    load(v, x + i);
    store(y + i, v);
  }
};

template <class Y, class X>
struct AddScaled {
  Y* y;
  const X* x;
  float alpha;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float u[N], v[N];
    load(u, y + i);
    load(v, x + i);
#pragma unroll
    for (int j = 0; j < N; ++j) u[j] = fmaf(v[j], alpha, u[j]);
    store(y + i, u);
  }
};

template <class T>
struct Scaled {
  T* y;
  const T* x;
  float factor;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float v[N];
    load(v, x + i);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] *= factor;
    store(y + i, v);
  }
};

template <class T>
struct Put {
  T* y;
  T value;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    if constexpr (N == 1) {
      y[i] = value;
    } else {
      alignas(16) T values[N];
#pragma unroll
      for (int j = 0; j < N; ++j) values[j] = value;
      *reinterpret_cast<uint4*>(y + i) = *reinterpret_cast<const uint4*>(values);
    }
  }
};

template <class T>
void put(CudaQueue& queue, const Tensor& y, T value) {
  for_each<kPackOf<T>>(queue, y.numel(), aligned({y}), "Fill", Put<T>{as<T>(y), value});
}

// A row is a run.
template <class T>
struct MoveRuns {
  T* y;
  const T* x;
  CopyRuns::Step outer, inner;
  Divisor in_outer;

  __device__ void operator()(uint32_t run, int j, Count<1>) const {
    const uint32_t o = in_outer.quotient(run), i = run - o * in_outer.value();
    y[o * outer.y + i * inner.y + j] = x[o * outer.x + i * inner.x + j];
  }
};

template <class T>
void move_runs(CudaQueue& queue, const CopyRuns& op) {
  if (op.inner.count == 0) return;
  for_each_of_rows<1>(queue, op.outer.count * op.inner.count, op.width, true, "CopyRuns",
                      MoveRuns<T>{as<T>(op.y), as<T>(op.x), op.outer, op.inner, Divisor(op.inner.count)});
}

// Returns true for memory that the GPU may not be able to read: host memory of the caller, pinned or not.
bool on_host(CudaQueue& queue, const Tensor& x) {
  cudaPointerAttributes a{};
  queue.use();
  if (cudaPointerGetAttributes(&a, x.raw()) != cudaSuccess) cudaGetLastError();
  return a.type != cudaMemoryTypeDevice && a.type != cudaMemoryTypeManaged;
}

void cast(CudaQueue& queue, const Tensor& y, const Tensor& x) {
  const bool packed = aligned({y, x});
  with_type(x.dtype(), [&](auto tx) {
    with_type(y.dtype(), [&](auto ty) {
      using X = decltype(tx);
      using Y = decltype(ty);
      for_each<kPackOf<X, Y>>(queue, x.numel(), packed, "Cast", Convert<Y, X>{as<Y>(y), as<X>(x)});
    });
  });
}

}  // namespace

// x may be in host memory: a batch that is converted to the model's type.
void run(const Cast& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  if (op.x.numel() == 0) return;
  if (op.x.dtype() == op.y.dtype()) return copy(op.y, op.x, stream);
  if (op.x.dtype() == DType::fp64)
    return with_type(op.y.dtype(), [&](auto t) {
      using Y = decltype(t);
      for_each<1>(queue, op.x.numel(), false, "Cast", Convert<Y, double>{as<Y>(op.y), as<double>(op.x)});
    });
  if (op.y.dtype() == DType::fp64)
    return with_type(op.x.dtype(), [&](auto t) {
      using X = decltype(t);
      for_each<1>(queue, op.x.numel(), false, "Cast", Convert<double, X>{as<double>(op.y), as<X>(op.x)});
    });
  if (!on_host(queue, op.x)) return cast(queue, op.y, op.x);
  const int64_t most = queue.scratch_bytes() / size_of(op.x.dtype()) / kPack * kPack;
  for (Range r{0, 0}; r.begin < op.x.numel(); r.begin = r.end) {
    r.end = std::min(op.x.numel(), r.begin + most);
    const Tensor staged(queue.scratch(r.size() * size_of(op.x.dtype())), op.x.dtype(), {r.size()});
    copy(staged, op.x.slice(r), stream);
    cast(queue, op.y.slice(r), staged);
  }
}

void run(const Fill& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  switch (op.y.dtype()) {
    case DType::fp32:
      return put(queue, op.y, float(op.value));
    case DType::bf16:
      return put(queue, op.y, from_float<bf16>(float(op.value)).bits);
    case DType::fp16:
      return put(queue, op.y, from_float<fp16>(float(op.value)).bits);
    case DType::fp64:
      return put(queue, op.y, op.value);
    case DType::int64:
      return put(queue, op.y, int64_t(op.value));
    case DType::int32:
      return put(queue, op.y, int32_t(op.value));
    case DType::uint16:
      return put(queue, op.y, uint16_t(op.value));
    case DType::uint8:
      return put(queue, op.y, uint8_t(op.value));
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
      return put(queue, op.y, to_fp8(float(op.value), fp8_format(op.y.dtype())));
  }
}

void run(const CopyRuns& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  switch (size_of(op.x.dtype())) {
    case 1:
      return move_runs<uint8_t>(queue, op);
    case 2:
      return move_runs<uint16_t>(queue, op);
    case 4:
      return move_runs<uint32_t>(queue, op);
    case 8:
      return move_runs<uint64_t>(queue, op);
  }
}

void run(const Axpy& op, Stream& stream) {
  with_type(op.x.dtype(), [&](auto tx) {
    with_type(op.y.dtype(), [&](auto ty) {
      using X = decltype(tx);
      using Y = decltype(ty);
      for_each<kPackOf<X, Y>>(cuda_queue(stream), op.y.numel(), aligned({op.y, op.x}), "Axpy",
                              AddScaled<Y, X>{as<Y>(op.y), as<X>(op.x), op.alpha});
    });
  });
}

void run(const Scale& op, Stream& stream) {
  with_type(op.x.dtype(), [&](auto t) {
    using T = decltype(t);
    for_each<kPackOf<T>>(cuda_queue(stream), op.y.numel(), aligned({op.y, op.x}), "Scale",
                         Scaled<T>{as<T>(op.y), as<T>(op.x), op.factor});
  });
}

// Fills on the CPU, a piece at a time: the values must have the CPU's bits, which depend on its logarithm and
// cosine.
void run(const RandomFill& op, Stream& stream) {
  const Tensor pinned = stream.pinned();
  const int64_t most = pinned.numel() / size_of(DType::fp32);
  for (Range r{0, 0}; r.begin < op.y.numel(); r.begin = r.end) {
    r.end = std::min(op.y.numel(), r.begin + most);
    RandomFill piece = op;
    piece.y = Tensor(pinned.raw(), DType::fp32, {r.size()}, MemoryKind::pinned);
    piece.first = op.first + r.begin;
    stream.enqueue([piece] { cpu::run(piece); });
    copy(op.y.slice(r), piece.y, stream);
  }
}

}  // namespace cleave::kernels::gpu
