#include "kernels/embedding.h"

#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/device.cuh"

namespace cleave::kernels::gpu {
namespace {

// A table of tokens [first, first + rows) of a vocabulary [0, vocab), without padding rows.
struct Table {
  int first, rows, vocab;
  unsigned long long* fault;

  // Returns true for a token of the vocabulary; reports others.
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
  const int32_t *tokens, *positions;
  int64_t width, first_position;
  Divisor seq;
  Table table;

  template <int N>
  __device__ void operator()(uint32_t row, int column, Count<N>) const {
    const int32_t token = tokens[row];
    if (!table.knows(token, row)) return;
    float v[N] = {};
    if (table.holds(token)) load(v, wte + (token - table.first) * width + column);
    if (wpe) {
      float p[N];
      load(p, wpe + (positions ? positions[row] : first_position + seq.rest(row)) * width + column);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] += p[j];
    }
    store(y + row * width + column, v);
  }
};

__global__ void place_rows(int32_t* positions, const int32_t* documents, int count, int rows, int seq,
                           int first) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= count) return;
  const int b = i / rows, place = first + i - b * rows;
  positions[i] = place - documents[int64_t(b) * seq + place];
}

__global__ void number_rows(int32_t* order, int count) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < count) order[i] = i;
}

// sum + dy[row_of(0)] + dy[row_of(1)] + ... of one column, in this order; eight loads are in flight.
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

// The rows of one token are a run of the sorted places. Each run is summed in pieces from its begin, one
// block per piece, and then over the pieces in order. A piece has 2^shift places: 128, or more if the sums
// would take too much memory. At the place where a piece begins: its number within the run and its length; at
// other places length 0.
struct Piece {
  int number, length;
};

__global__ void __launch_bounds__(256)
    find_pieces(Piece* pieces, const int32_t* sorted, int rows, int shift) {
  const int most = 1 << shift;
  const int place = blockIdx.x * 256 + threadIdx.x;
  if (place >= rows) return;
  const int32_t token = sorted[place];
  int begin = 0;  // the first place of the token
  for (int high = place; begin < high;) {
    const int middle = (begin + high) / 2;
    if (sorted[middle] < token)
      begin = middle + 1;
    else
      high = middle;
  }
  int length = 0;
  if ((place - begin) % most == 0) {
    int low = place + 1, high = min(rows, place + most);
    while (low < high) {
      const int middle = (low + high) / 2;
      if (sorted[middle] == token)
        low = middle + 1;
      else
        high = middle;
    }
    length = low - place;
  }
  pieces[place] = {(place - begin) >> shift, length};
}

// Sums of pieces that are shorter than their run, in two halves: first pieces and others. Pieces of a half
// begin at least a piece length apart, so place >> shift identifies a sum.
struct PieceSums {
  float* data;  // [2, halves, width]
  int* first;   // [halves]: start of a run with several pieces, or -1
  int halves, width, shift;

  __device__ int most() const { return 1 << shift; }

  __device__ float* of(int place, bool is_first) const {
    return data + (int64_t(is_first ? 0 : halves) + (place >> shift)) * width;
  }
};

// One block per sorted place; most have no work.
template <class T, class D>
__global__ void __launch_bounds__(128)
    add_pieces(T* dwte, const D* dy, const int32_t* sorted, const int32_t* order, const Piece* pieces,
               int rows, PieceSums sums, Table table, bool accumulate) {
  const int place = blockIdx.x, width = sums.width;
  const auto [number, length] = pieces[place];
  if (length == 0) return;
  const int32_t token = sorted[place];
  if (!table.holds(token)) {
    if (threadIdx.x == 0) table.knows(token, order[place]);
    return;
  }
  const bool whole =
      number == 0 && !(length == sums.most() && place + length < rows && sorted[place + length] == token);
  if (!whole && number == 0 && threadIdx.x == 0) sums.first[place >> sums.shift] = place;
  for (int column = threadIdx.x; column < width; column += 128) {
    T* out = dwte + int64_t(token - table.first) * width + column;
    const float sum = add_rows(number == 0 && accumulate ? to_float(*out) : 0.0f, dy + column, width, length,
                               [=](int64_t k) { return int64_t(order[place + k]); });
    if (whole)
      *out = rounded<T>(sum);
    else
      sums.of(place, number == 0)[column] = sum;
  }
}

// One block per sum of first pieces.
template <class T>
__global__ void __launch_bounds__(128)
    join_pieces(T* dwte, const int32_t* sorted, int rows, PieceSums sums, Table table) {
  const int first = sums.first[blockIdx.x];
  if (first < 0) return;
  const int32_t token = sorted[first];
  int end = first + sums.most();
  while (end < rows && sorted[end] == token) end += sums.most();
  for (int column = threadIdx.x; column < sums.width; column += 128) {
    float sum = sums.of(first, true)[column];
#pragma unroll 8
    for (int place = first + sums.most(); place < end; place += sums.most())
      sum += sums.of(place, false)[column];
    dwte[int64_t(token - table.first) * sums.width + column] = rounded<T>(sum);
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

// Places of the batch sorted by token, stable.
struct Grouping {
  const int32_t *tokens, *order;
  const Piece* pieces;
  PieceSums sums;
};
Grouping group(CudaQueue& queue, const Tensor& tokens, int width) {
  const int rows = int(tokens.numel());
  int shift = 7;
  while (2 * (int64_t(rows) >> shift) * width * int64_t(sizeof(float)) > int64_t{64} << 20) ++shift;
  const int halves = int(ceil_div(rows, int64_t{1} << shift));
  const int64_t each = round_up(rows * int64_t(sizeof(int32_t)), 256);
  size_t sort_bytes = 0;
  int32_t* none = nullptr;
  cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, none, none, none, none, rows);
  const int64_t firsts = round_up(halves * int64_t(sizeof(int)), 256),
                sums = round_up(2 * int64_t(halves) * width * int64_t(sizeof(float)), 256);
  // The sort's memory is reused for the sums afterwards.
  auto* base =
      static_cast<std::byte*>(queue.scratch(5 * each + firsts + std::max(sums, int64_t(sort_bytes))));
  const auto piece_of_base = [&](int64_t n) { return reinterpret_cast<int32_t*>(base + n * each); };
  int32_t *places = piece_of_base(0), *sorted = piece_of_base(1), *order = piece_of_base(2);
  auto* pieces = reinterpret_cast<Piece*>(piece_of_base(3));
  auto* first = piece_of_base(5);
  auto* last = reinterpret_cast<std::byte*>(first) + firsts;
  number_rows<<<unsigned(ceil_div(rows, 256)), 256, 0, queue.use()>>>(places, rows);
  const cudaError_t error = cub::DeviceRadixSort::SortPairs(last, sort_bytes, as<int32_t>(tokens), sorted,
                                                            places, order, rows, 0, 32, queue.use());
  CHECK(error == cudaSuccess, "EmbeddingBackward: sorting {} tokens: {}", rows, cudaGetErrorString(error));
  find_pieces<<<unsigned(ceil_div(rows, 256)), 256, 0, queue.use()>>>(pieces, sorted, rows, shift);
  cudaMemsetAsync(first, 0xff, size_t(firsts), queue.use());
  return {sorted, order, pieces, {reinterpret_cast<float*>(last), first, halves, width, shift}};
}

void clear(CudaQueue& queue, const Tensor& x) {
  if (x.defined() && x.bytes() > 0) cudaMemsetAsync(x.raw(), 0, size_t(x.bytes()), queue.use());
}

template <class D>
void add_tokens(CudaQueue& queue, const EmbeddingBackward& op) {
  const int rows = int(op.dy.dim(0)), width = int(op.dy.dim(1));
  const Grouping g = group(queue, op.tokens, width);
  const Table table = table_of(queue, op.dwte, op.part);
  with_type(op.dwte.dtype(), [&](auto t) {
    using T = decltype(t);
    add_pieces<T, D><<<unsigned(rows), 128, 0, queue.use()>>>(
        as<T>(op.dwte), as<D>(op.dy), g.tokens, g.order, g.pieces, rows, g.sums, table, op.accumulate_wte);
    join_pieces<T>
        <<<unsigned(g.sums.halves), 128, 0, queue.use()>>>(as<T>(op.dwte), g.tokens, rows, g.sums, table);
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
    for_each_of_rows<kPackOf<T>>(
        queue, op.y.dim(0), width, width % kPackOf<T> == 0 && aligned({op.y, op.wte, op.wpe}),
        "EmbeddingForward",
        Lookup<T>{as<T>(op.y), as<T>(op.wte), as<T>(op.wpe), as<int32_t>(op.tokens),
                  op.positions.defined() ? as<int32_t>(op.positions) : nullptr, width, op.first_position,
                  Divisor(op.seq), table_of(queue, op.wte, op.part)});
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

void run(const DocumentPositions& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  const int count = int(op.positions.numel());
  if (count == 0) return;
  place_rows<<<unsigned(ceil_div(count, 256)), 256, 0, queue.use()>>>(
      as<int32_t>(op.positions), as<int32_t>(op.documents), count, int(op.positions.dim(1)),
      int(op.documents.dim(1)), int(op.first));
  queue.launched("DocumentPositions");
}

}  // namespace cleave::kernels::gpu
