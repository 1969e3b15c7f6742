#include "kernels/embedding.h"

#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/device.cuh"

namespace cleave::gpu {
namespace {

// A table of tokens [first, first + rows) of a vocabulary [0, vocab), without rows that only pad it.
struct Table {
  int first, rows, vocab;
  unsigned long long* fault;

  // Reports a token outside the vocabulary.
  __device__ bool knows(int32_t token, int64_t place) const {
    if (token >= 0 && token < vocab) return true;
    atomicMin(fault, static_cast<unsigned long long>(place) << 32 | static_cast<uint32_t>(token));
    return false;
  }
  __device__ bool holds(int32_t token) const { return token >= first && token - first < rows; }
};

Table table_of(CudaQueue& queue, const Tensor& wte, const VocabPart& part) {
  const int64_t vocab = part.size > 0 ? part.size : wte.dim(0);
  const int64_t rows = std::min(wte.dim(0), vocab - part.first);
  return {int(part.first), int(rows), int(vocab), queue.fault(Fault::token, vocab)};
}

template <class T>
struct Lookup {
  T* y;
  const T *wte, *wpe;
  const int32_t* tokens;
  int64_t width, seq, first_position;
  Table table;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    const int64_t row = i / width, column = i % width;
    const int32_t token = tokens[row];
    if (!table.knows(token, row)) return;
    float v[N] = {};
    if (table.holds(token)) load(v, wte + (token - table.first) * width + column);
    if (wpe) {
      float p[N];
      load(p, wpe + (first_position + row % seq) * width + column);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] += p[j];
    }
    store(y + i, v);
  }
};

__global__ void number_rows(int32_t* order, int count) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < count) order[i] = i;
}

// sum + dy[row_of(0)] + dy[row_of(1)] + ... of one column, in that order; eight loads are in flight at a
// time.
template <class D, class RowOf>
__device__ __forceinline__ float add_rows(float sum, const D* dy, int64_t width, int64_t count,
                                          RowOf row_of) {
  int64_t k = 0;
  for (; k + 8 <= count; k += 8) {
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = to_float(dy[row_of(k + j) * width]);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += v[j];
  }
  for (; k < count; ++k) sum += to_float(dy[row_of(k) * width]);
  return sum;
}

// One block for each sorted place; the first place of a token adds all rows of that token.
template <class T, class D>
__global__ void __launch_bounds__(128)
    token_gradient(T* dwte, const D* dy, const int32_t* sorted, const int32_t* order, int rows, int width,
                   Table table, bool accumulate) {
  const int first = blockIdx.x;
  const int32_t token = sorted[first];
  if (first > 0 && sorted[first - 1] == token) return;
  if (!table.holds(token)) {
    if (threadIdx.x == 0) table.knows(token, order[first]);
    return;
  }
  int last = first + 1;
  while (last < rows && sorted[last] == token) ++last;
  for (int column = threadIdx.x; column < width; column += 128) {
    T* out = dwte + int64_t(token - table.first) * width + column;
    *out = rounded<T>(add_rows(accumulate ? to_float(*out) : 0.0f, dy + column, width, last - first,
                               [=](int64_t k) { return int64_t(order[first + k]); }));
  }
}

template <class T, class D>
__global__ void __launch_bounds__(128) position_gradient(T* dwpe, const D* dy, int64_t rows, int width,
                                                         int64_t seq, int64_t first_row, bool accumulate) {
  const int64_t place = blockIdx.x, count = (rows - place + seq - 1) / seq;
  for (int column = threadIdx.x; column < width; column += 128) {
    T* out = dwpe + (first_row + place) % seq * width + column;
    *out = rounded<T>(add_rows(accumulate ? to_float(*out) : 0.0f, dy + column, width, count,
                               [=](int64_t k) { return k * seq + place; }));
  }
}

// The batch's places ordered by token; places of equal tokens keep their order.
struct Grouping {
  const int32_t *tokens, *order;
};
Grouping group(CudaQueue& queue, const Tensor& tokens) {
  const int rows = int(tokens.numel());
  const int64_t each = round_up(rows * int64_t(sizeof(int32_t)), 256);
  size_t sort_bytes = 0;
  int32_t* none = nullptr;
  cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, none, none, none, none, rows);
  auto* base = static_cast<std::byte*>(queue.scratch(3 * each + int64_t(sort_bytes)));
  auto *places = reinterpret_cast<int32_t*>(base), *sorted = reinterpret_cast<int32_t*>(base + each);
  auto* order = reinterpret_cast<int32_t*>(base + 2 * each);
  number_rows<<<unsigned(ceil_div(rows, 256)), 256, 0, queue.use()>>>(places, rows);
  const cudaError_t error = cub::DeviceRadixSort::SortPairs(base + 3 * each, sort_bytes, as<int32_t>(tokens),
                                                            sorted, places, order, rows, 0, 32, queue.use());
  CHECK(error == cudaSuccess, "EmbeddingBackward: sorting {} tokens: {}", rows, cudaGetErrorString(error));
  return {sorted, order};
}

void clear(CudaQueue& queue, const Tensor& x) {
  if (x.defined() && x.bytes() > 0) cudaMemsetAsync(x.raw(), 0, size_t(x.bytes()), queue.use());
}

template <class D>
void add_tokens(CudaQueue& queue, const EmbeddingBackward& op) {
  const int rows = int(op.dy.dim(0)), width = int(op.dy.dim(1));
  const Grouping g = group(queue, op.tokens);
  const Table table = table_of(queue, op.dwte, op.part);
  with_type(op.dwte.dtype(), [&](auto t) {
    using T = decltype(t);
    token_gradient<T, D><<<unsigned(rows), 128, 0, queue.use()>>>(
        as<T>(op.dwte), as<D>(op.dy), g.tokens, g.order, rows, width, table, op.accumulate_wte);
  });
}

template <class D>
void add_positions(CudaQueue& queue, const EmbeddingBackward& op) {
  const int64_t rows = op.dy.dim(0), width = op.dy.dim(1);
  with_type(op.dwpe.dtype(), [&](auto t) {
    using T = decltype(t);
    position_gradient<T, D><<<unsigned(std::min(rows, op.seq)), 128, 0, queue.use()>>>(
        as<T>(op.dwpe), as<D>(op.dy), rows, int(width), op.seq, op.first_row, op.accumulate_wpe);
  });
}

}  // namespace

void run(const EmbeddingForward& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  with_type(op.wte.dtype(), [&](auto t) {
    using T = decltype(t);
    const int64_t width = op.y.dim(1);
    for_each(queue, op.y.numel(), width % kPack == 0 && aligned({op.y, op.wte, op.wpe}), "EmbeddingForward",
             Lookup<T>{as<T>(op.y), as<T>(op.wte), as<T>(op.wpe), as<int32_t>(op.tokens), width, op.seq,
                       op.first_position, table_of(queue, op.wte, op.part)});
  });
}

void run(const EmbeddingBackward& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  if (!op.accumulate_wte) clear(queue, op.dwte);
  if (!op.accumulate_wpe) clear(queue, op.dwpe);
  if (op.dy.numel() == 0) return;
  with_type(op.dy.dtype(), [&](auto d) {
    using D = decltype(d);
    if (op.dwte.defined()) add_tokens<D>(queue, op);
    if (op.dwpe.defined()) add_positions<D>(queue, op);
  });
  queue.launched("EmbeddingBackward");
}

}  // namespace cleave::gpu
