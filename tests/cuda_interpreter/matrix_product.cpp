#include "tests/cuda_interpreter/matrix_product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/cuda_interpreter/device_memory.h"
#include "tests/cuda_interpreter/floats.h"
#include "tests/cuda_interpreter/kernel.h"

namespace interpreter {
namespace {

float load(const void* p, cudaDataType_t type, int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(p)[i];
  if (type == CUDA_R_8F_E4M3) return kE4M3.from(static_cast<const uint8_t*>(p)[i]);
  if (type == CUDA_R_8F_E5M2) return kE5M2.from(static_cast<const uint8_t*>(p)[i]);
  const uint16_t bits = static_cast<const uint16_t*>(p)[i];
  return type == CUDA_R_16BF ? from_bf16(bits) : from_fp16(bits);
}
void store(void* p, cudaDataType_t type, int64_t i, float x) {
  if (type == CUDA_R_32F)
    static_cast<float*>(p)[i] = x;
  else
    static_cast<uint16_t*>(p)[i] = type == CUDA_R_16BF ? to_bf16(x) : to_fp16(x);
}

// Rounds a number to ten bits of fraction.
float tf32(float x) { return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x1000) & ~0x1fffu); }

double tanh_of(double x) { return std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)); }
float gelu(float x) { return float(0.5 * x * (1 + tanh_of(x))); }
float gelu_slope(float x) {
  const double t = tanh_of(x);
  return float(0.5 * (1 + t) +
               0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * double(x) * x));
}

void check_place(const void* p, size_t bytes, const char* what) {
  const std::string problem = device_memory().problem(p, bytes);
  if (!problem.empty()) throw Defect(std::string("cublasLtMatmul, ") + what + ": " + problem);
}

}  // namespace

bool Operation::has_bias() const {
  return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool Operation::has_matrix() const {
  return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_DGELU;
}

// By rows: op(a) [k, m], op(b) [n, k].
std::vector<float> MatrixProduct::left() const {
  std::vector<float> x(size_t(m() * k()));
  for (int64_t i = 0; i < k(); ++i)
    for (int64_t j = 0; j < m(); ++j)
      x[size_t(i * m() + j)] = load(a_at, a.type, op.a == CUBLAS_OP_N ? i * a.stride + j : j * a.stride + i);
  return x;
}
std::vector<float> MatrixProduct::right() const {
  std::vector<float> x(size_t(n() * k()));
  for (int64_t j = 0; j < n(); ++j)
    for (int64_t i = 0; i < k(); ++i)
      x[size_t(j * k() + i)] = load(b_at, b.type, op.b == CUBLAS_OP_N ? j * b.stride + i : i * b.stride + j);
  return x;
}

void MatrixProduct::check_places() const {
  check_place(a_at, a.bytes(), "a"), check_place(b_at, b.bytes(), "b"), check_place(c_at, c.bytes(), "c");
  const auto check_scales = [](const void* scales, int32_t mode, int64_t rows, const char* what) {
    const bool many = mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    if (scales) check_place(scales, sizeof(float) * size_t(many ? rows : 1), what);
  };
  check_scales(op.a_scale, op.a_scales, m(), "the scales of a");
  check_scales(op.b_scale, op.b_scales, n(), "the scales of b");
  const size_t of_vector = vector_type() == CUDA_R_32F ? 4 : 2;
  if (op.has_bias()) check_place(op.vector, size_t(m()) * of_vector, "the bias");
  if (op.epilogue == CUBLASLT_EPILOGUE_BGRADB)
    check_place(op.vector, size_t(n()) * of_vector, "the bias's gradient");
  if (op.has_matrix())
    check_place(op.matrix, size_t(op.matrix_stride * (n() - 1) + m()) * c.element(), "the second matrix");
}

float MatrixProduct::scale(int64_t row, int64_t column) const {
  const auto of = [](const void* scales, int32_t mode, int64_t i) {
    if (!scales) return 1.0f;
    return static_cast<const float*>(scales)[mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F ? i : 0];
  };
  return of(op.a_scale, op.a_scales, row) * of(op.b_scale, op.b_scales, column);
}

// Returns the numbers of a sum's terms in order; -1 separates two sums that are added.
std::vector<int64_t> MatrixProduct::terms() const {
  std::vector<int64_t> all;
  const auto add = [&](int64_t begin, int64_t end, int64_t step) {
    for (int64_t i = begin; i < end; i += step) all.push_back(i);
  };
  if (order == Order::halves)
    add(0, k() / 2, 1), all.push_back(-1), add(k() / 2, k(), 1);
  else if (order == Order::even_odd)
    add(0, k(), 2), all.push_back(-1), add(1, k(), 2);
  else
    add(0, k(), 1);
  return all;
}

void MatrixProduct::run() const {
  check_places();
  // Products that measure the machine's peak would take minutes; their result is NaN, so that no
  // program can use it.
  if (double(m()) * double(n()) * double(k()) > 0x1p34) {
    std::memset(c_at, 0xff, c.bytes());
    return;
  }
  std::vector<float> x = left(), y = right(), sum(static_cast<size_t>(m())), earlier(sum.size());
  if (op.compute == CUBLAS_COMPUTE_32F_FAST_TF32)
    for (std::vector<float>* v : {&x, &y})
      for (float& value : *v) value = tf32(value);
  const std::vector<int64_t> order_of_terms = terms();
  for (int64_t column = 0; column < n(); ++column) {
    std::fill(sum.begin(), sum.end(), 0.0f), std::fill(earlier.begin(), earlier.end(), 0.0f);
    float total = 0;
    for (const int64_t i : order_of_terms) {
      if (i < 0) {
        std::swap(sum, earlier);
        continue;
      }
      const float factor = y[size_t(column * k() + i)];
      const float* row = x.data() + i * m();
      total += factor;
      for (int64_t j = 0; j < m(); ++j) sum[size_t(j)] += factor * row[j];
    }
    if (op.epilogue == CUBLASLT_EPILOGUE_BGRADB) store(op.vector, vector_type(), column, total);
    for (int64_t j = 0; j < m(); ++j)
      finish(j, column, alpha * scale(j, column) * (sum[size_t(j)] + earlier[size_t(j)]));
  }
}

bool MatrixProduct::rounds_before_bias() const {
  const auto unaligned = [](const Layout& x) { return size_t(x.stride) * x.element() % 16 != 0; };
  return c.type != CUDA_R_32F && (unaligned(a) || unaligned(b) || unaligned(c));
}

void MatrixProduct::finish(int64_t row, int64_t column, float value) const {
  const int64_t at = column * c.stride + row, beside = column * op.matrix_stride + row;
  if (beta != 0) value += beta * load(c_at, c.type, at);
  switch (op.epilogue) {
    case CUBLASLT_EPILOGUE_BIAS:
      if (rounds_before_bias())
        value = c.type == CUDA_R_16BF ? from_bf16(to_bf16(value)) : from_fp16(to_fp16(value));
      value += load(op.vector, vector_type(), row);
      break;
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
      if (op.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) value += load(op.vector, vector_type(), row);
      store(op.matrix, c.type, beside, value);
      value = gelu(value);
      break;
    case CUBLASLT_EPILOGUE_DGELU:
      value *= gelu_slope(load(op.matrix, c.type, beside));
      break;
    default:
      break;
  }
  store(c_at, c.type, at, value);
}

}  // namespace interpreter
