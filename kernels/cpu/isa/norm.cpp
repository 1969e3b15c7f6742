#include "kernels/cpu/parallel.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

template <class T>
T* at(Vec v, int64_t element) {
  return v.data ? static_cast<T*>(v.data) + element : nullptr;
}

// Writes x + residual and returns the row to normalize. Reads it back as stored, so that backward uses the
// same numbers.
template <class T>
const T* residual_sum(T* sum, const T* x, const T* residual, int64_t width) {
  if (!residual) return x;
  for_vectors(0, width,
              [=](int64_t i, auto n) { store(sum + i, load(x + i, n) + load(residual + i, n), n); });
  return sum;
}

template <class T>
void layer_norm_row(const LayerNormArgs& args, int64_t row) {
  const int64_t width = args.width, begin = row * width;
  const T* s =
      residual_sum<T>(at<T>(args.sum, begin), at<T>(args.x, begin), at<T>(args.residual, begin), width);
  F16 total = zero(), squares = zero();
  for_vectors(0, width, [&](int64_t i, auto n) { total = total + load(s + i, n); });
  const float mean = sum_lanes(total) / float(width);
  for_vectors(0, width, [&](int64_t i, auto n) {
    const F16 d = keep(load(s + i, n) - splat(mean), n);
    squares = fma(d, d, squares);
  });
  const float rstd = 1.0f / __builtin_sqrtf(sum_lanes(squares) / float(width) + args.eps);
  T* y = at<T>(args.y, begin);
  const T *weight = at<T>(args.weight, 0), *bias = at<T>(args.bias, 0);
  for_vectors(0, width, [=](int64_t i, auto n) {
    const F16 normal = (load(s + i, n) - splat(mean)) * rstd;
    store(y + i, fma(normal, load(weight + i, n), load(bias + i, n)), n);
  });
  args.mean[row] = mean;
  args.rstd[row] = rstd;
}

// dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy weight; adds the row's part of the weight gradients.
template <class T>
void layer_norm_grad_row(const LayerNormGradArgs& args, int64_t row, float* dweight, float* dbias) {
  const int64_t width = args.width, begin = row * width;
  const T *dy = at<T>(args.dy, begin), *x = at<T>(args.x, begin), *weight = at<T>(args.weight, 0);
  const T* dresidual = at<T>(args.dresidual, begin);
  T* dx = at<T>(args.dx, begin);
  const float rstd = args.rstd[row];
  const S16 mean = splat(args.mean[row]);
  F16 sum_g = zero(), sum_gx = zero();
  for_vectors(0, width, [&](int64_t i, auto n) {
    const F16 d = load(dy + i, n), xhat = (load(x + i, n) - mean) * rstd, g = d * load(weight + i, n);
    sum_g = sum_g + g;
    sum_gx = fma(g, xhat, sum_gx);
    store(dweight + i, fma(d, xhat, load(dweight + i)));
    store(dbias + i, d + load(dbias + i));
  });
  const S16 mean_g = splat(sum_lanes(sum_g) / float(width)),
            mean_gx = splat(sum_lanes(sum_gx) / float(width));
  for_vectors(0, width, [=](int64_t i, auto n) {
    const F16 xhat = (load(x + i, n) - mean) * rstd, g = load(dy + i, n) * load(weight + i, n);
    const F16 through = fnma(xhat, mean_gx, g - mean_g) * rstd;
    store(dx + i, dresidual ? through + load(dresidual + i, n) : through, n);
  });
}

template <class T>
void rms_norm_row(const RmsNormArgs& args, int64_t row) {
  const int64_t width = args.width, begin = row * width;
  const T* s =
      residual_sum<T>(at<T>(args.sum, begin), at<T>(args.x, begin), at<T>(args.residual, begin), width);
  F16 squares = zero();
  for_vectors(0, width, [&](int64_t i, auto n) {
    const F16 v = load(s + i, n);
    squares = fma(v, v, squares);
  });
  const float rstd = 1.0f / __builtin_sqrtf(sum_lanes(squares) / float(width) + args.eps);
  T* y = at<T>(args.y, begin);
  const T* weight = at<T>(args.weight, 0);
  const S16 offset = splat(args.offset);
  for_vectors(0, width, [=](int64_t i, auto n) {
    store(y + i, load(s + i, n) * rstd * (load(weight + i, n) + offset), n);
  });
  args.rstd[row] = rstd;
}

// dx = rstd (g - xhat mean(g xhat)), g = dy (offset + weight); adds the row's part of the weight gradient.
template <class T>
void rms_norm_grad_row(const RmsNormGradArgs& args, int64_t row, float* dweight) {
  const int64_t width = args.width, begin = row * width;
  const T *dy = at<T>(args.dy, begin), *x = at<T>(args.x, begin), *weight = at<T>(args.weight, 0);
  const T* dresidual = at<T>(args.dresidual, begin);
  T* dx = at<T>(args.dx, begin);
  const float rstd = args.rstd[row];
  const S16 offset = splat(args.offset);
  F16 sum = zero();
  for_vectors(0, width, [&](int64_t i, auto n) {
    const F16 d = load(dy + i, n), xhat = load(x + i, n) * rstd;
    sum = fma(d * (load(weight + i, n) + offset), xhat, sum);
    store(dweight + i, fma(d, xhat, load(dweight + i)));
  });
  const S16 mean = splat(sum_lanes(sum) / float(width));
  for_vectors(0, width, [=](int64_t i, auto n) {
    const F16 xhat = load(x + i, n) * rstd, g = load(dy + i, n) * (load(weight + i, n) + offset);
    const F16 through = fnma(xhat, mean, g) * rstd;
    store(dx + i, dresidual ? through + load(dresidual + i, n) : through, n);
  });
}

// Calls row(r, partial) for every row. The rows of a block share `stride` partial sums in scratch, initially
// zero.
template <class Row>
void blocks_of_rows(int64_t rows, int64_t width, float* scratch, int64_t stride, Row row) {
  const int64_t blocks = (rows + kNormRowBlock - 1) / kNormRowBlock;
  parallel_for(blocks, rows * width > kSerialNumel, [=](int64_t b) {
    float* partial = scratch + b * stride;
    for (int64_t i = 0; i < stride; i += 16) store(partial + i, zero());
    const int64_t begin = b * kNormRowBlock, rest = rows - begin;
    const int64_t end = begin + (rest < kNormRowBlock ? rest : kNormRowBlock);
    for (int64_t r = begin; r < end; ++r) row(r, partial);
  });
}

// out = (out) + (the blocks' partial sums in order). The bits do not depend on whether the sum is stored
// separately and added later.
void add_partials(Vec out, const float* partials, int64_t stride, int64_t blocks, int64_t width,
                  bool accumulate) {
  with_type(out.type, [&](auto t) {
    auto* y = static_cast<decltype(t)*>(out.data);
    for_vectors(0, width, [=](int64_t i, auto n) {
      F16 sum = zero();
      for (int64_t b = 0; b < blocks; ++b) sum = sum + load(partials + b * stride + i);
      store(y + i, accumulate ? load(y + i, n) + sum : sum, n);
    });
  });
}

}  // namespace

void layer_norm(const LayerNormArgs& args) {
  with_type(args.x.type, [&](auto t) {
    parallel_rows(args.rows, args.width, [&](int64_t row) { layer_norm_row<decltype(t)>(args, row); });
  });
}

void layer_norm_grad(const LayerNormGradArgs& args) {
  const int64_t padded = (args.width + 15) / 16 * 16;
  const int64_t blocks = (args.rows + kNormRowBlock - 1) / kNormRowBlock;
  with_type(args.x.type, [&](auto t) {
    blocks_of_rows(args.rows, args.width, args.scratch, 2 * padded, [&](int64_t row, float* partial) {
      layer_norm_grad_row<decltype(t)>(args, row, partial, partial + padded);
    });
  });
  add_partials(args.dweight, args.scratch, 2 * padded, blocks, args.width, args.accumulate_weight);
  add_partials(args.dbias, args.scratch + padded, 2 * padded, blocks, args.width, args.accumulate_bias);
}

void rms_norm(const RmsNormArgs& args) {
  with_type(args.x.type, [&](auto t) {
    parallel_rows(args.rows, args.width, [&](int64_t row) { rms_norm_row<decltype(t)>(args, row); });
  });
}

void rms_norm_grad(const RmsNormGradArgs& args) {
  const int64_t padded = (args.width + 15) / 16 * 16;
  const int64_t blocks = (args.rows + kNormRowBlock - 1) / kNormRowBlock;
  with_type(args.x.type, [&](auto t) {
    blocks_of_rows(args.rows, args.width, args.scratch, padded,
                   [&](int64_t row, float* partial) { rms_norm_grad_row<decltype(t)>(args, row, partial); });
  });
  add_partials(args.dweight, args.scratch, padded, blocks, args.width, args.accumulate);
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
