#include "tests/cuda_interpreter/product_rules.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <random>

#include "tests/cuda_interpreter/settings.h"

namespace interpreter {
namespace {

constexpr uint64_t kMade = 0x616c676f;  // made by this library
constexpr uint64_t kMostWorkspace = 1 << 20;
constexpr uint32_t kMostAlignment = 256;

Refusal refusal(cublasStatus_t status, const char* format, ...) __attribute__((format(printf, 2, 3)));
Refusal refusal(cublasStatus_t status, const char* format, ...) {
  char line[300];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  return {status, line};
}

bool sixteen_bits(cudaDataType_t t) { return t == CUDA_R_16F || t == CUDA_R_16BF; }

uint32_t alignment_of(const void* p) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  return at == 0 ? kMostAlignment : uint32_t(std::min<uintptr_t>(kMostAlignment, at & -at));
}

// Checks 8-bit operands: layout, types, and row scales for both or none.
Refusal problem_of_small_types(const Described& p) {
  const auto no = [](const char* what, int is) {
    return refusal(CUBLAS_STATUS_NOT_SUPPORTED, "a product in FP8 with %s %d", what, is);
  };
  if (p.op.compute != CUBLAS_COMPUTE_32F) return no("the type", int(p.op.compute));
  if (!p.b.eight_bits()) return no("a second operand of type", int(p.b.type));
  if (p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2)
    return no("two operands of type", int(p.a.type));
  if (p.op.a != CUBLAS_OP_T || p.op.b != CUBLAS_OP_N) return no("a first operand that is as", int(p.op.a));
  if (!sixteen_bits(p.c.type) && p.c.type != CUDA_R_32F) return no("a result of type", int(p.c.type));
  if (p.op.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.op.epilogue != CUBLASLT_EPILOGUE_BIAS)
    return no("the epilogue", int(p.op.epilogue));
  const int bias = p.c.type == CUDA_R_16F ? CUDA_R_16F : CUDA_R_16BF;
  if (p.op.has_bias() && (p.op.vector_type < 0 ? int(p.c.type) : p.op.vector_type) != bias)
    return no("a bias of type", p.op.vector_type);
  for (const int32_t scales : {p.op.a_scales, p.op.b_scales})
    if (scales != p.op.a_scales || (scales != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F &&
                                    scales != CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F))
      return no("scales in mode", scales);
  for (const int64_t dim : {p.a.rows, p.a.columns, p.a.stride, p.b.stride, p.c.stride})
    if (dim % 16 != 0) return no("a dimension that is not a multiple of 16:", int(dim));
  return {};
}

// Checks the type table of CUBLAS_COMPUTE_32F and its TF32, and the bias type.
Refusal problem_of_types(const Described& p) {
  const auto no = [](const char* what, int type) {
    return refusal(CUBLAS_STATUS_NOT_SUPPORTED, "%s of type %d", what, type);
  };
  const bool fast = p.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (p.op.compute != CUBLAS_COMPUTE_32F && !fast) return no("a product", int(p.op.compute));
  if (p.op.scale != CUDA_R_32F) return no("a scale", int(p.op.scale));
  if (p.a.eight_bits()) return problem_of_small_types(p);
  if (p.op.a_scale || p.op.b_scale) return no("scales of an operand", int(p.a.type));
  if (p.a.type != CUDA_R_32F && (fast || !sixteen_bits(p.a.type))) return no("an operand", int(p.a.type));
  if (p.b.type != p.a.type) return no("a second operand", int(p.b.type));
  if (p.c.type != p.a.type && p.c.type != CUDA_R_32F) return no("a result", int(p.c.type));
  const bool vector = p.op.has_bias() || p.op.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  if (vector && p.op.vector_type >= 0 && p.op.vector_type != int(p.c.type))
    return no("a bias or its gradient", p.op.vector_type);
  return {};
}

Refusal problem_of_shapes(const Described& p) {
  const auto swapped = [](const Layout& x, cublasOperation_t op) {
    return op == CUBLAS_OP_N ? std::pair{x.rows, x.columns} : std::pair{x.columns, x.rows};
  };
  const auto [m, k] = swapped(p.a, p.op.a);
  const auto [k_too, n] = swapped(p.b, p.op.b);
  if (m != p.c.rows || n != p.c.columns || k != k_too)
    return refusal(CUBLAS_STATUS_INVALID_VALUE, "%ld x %ld times %ld x %ld for %ld x %ld", long(m), long(k),
                   long(k_too), long(n), long(p.c.rows), long(p.c.columns));
  for (const Layout* x : {&p.a, &p.b, &p.c})
    if (x->stride < x->rows || x->rows < 1 || x->columns < 1)
      return refusal(CUBLAS_STATUS_INVALID_VALUE, "a leading dimension of %ld for %ld rows", long(x->stride),
                     long(x->rows));
  return {};
}

Refusal problem_of_epilogue(const Described& p) {
  const bool vector = p.op.has_bias() || p.op.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  if (!vector && !p.op.has_matrix() && p.op.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
    return refusal(CUBLAS_STATUS_NOT_SUPPORTED, "epilogue %d", int(p.op.epilogue));
  if (vector && !p.op.vector)
    return refusal(CUBLAS_STATUS_INVALID_VALUE, "epilogue %d without its vector", int(p.op.epilogue));
  if (!p.op.has_matrix()) return {};
  if (!p.op.matrix)
    return refusal(CUBLAS_STATUS_INVALID_VALUE, "epilogue %d without its matrix", int(p.op.epilogue));
  if (p.op.matrix_stride % 8 != 0 || p.op.matrix_stride < p.c.rows)
    return refusal(CUBLAS_STATUS_INVALID_VALUE, "GELU's matrix with a leading dimension of %ld for %ld rows",
                   long(p.op.matrix_stride), long(p.c.rows));
  if (alignment_of(p.op.matrix) < 16)
    return refusal(CUBLAS_STATUS_INVALID_VALUE, "GELU's matrix at %p, which is not aligned to 16 bytes",
                   p.op.matrix);
  return {};
}

// Mixes all bits of a number.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
uint64_t mixed(std::initializer_list<uint64_t> all) {
  uint64_t x = 0;
  for (const uint64_t one : all) x = mixed(x ^ one);
  return x;
}

}  // namespace

Refusal problem_of(const Described& product) {
  for (const auto rule : {problem_of_types, problem_of_shapes, problem_of_epilogue})
    if (Refusal no = rule(product)) return no;
  return {};
}

Refusal problem_of(const Described& product, const Algorithm& algorithm, const Buffers& at,
                   const Room& room) {
  if (Refusal no = problem_of(product)) return no;
  if (product.a.eight_bits())
    for (const void* p : {at.a, at.b, at.result})
      if (alignment_of(p) < 16)
        return refusal(CUBLAS_STATUS_INVALID_VALUE, "a matrix of a product in FP8 at %p", p);
  if (algorithm.kind != kind_of(product))
    return refusal(CUBLAS_STATUS_INVALID_VALUE, "an algorithm for another kind of product");
  const struct {
    const char* what;
    const void* at;
    uint32_t wanted;
  } pointers[] = {{"a", at.a, algorithm.alignment[0]},
                  {"b", at.b, algorithm.alignment[1]},
                  {"the result", at.result, algorithm.alignment[2]},
                  {"the epilogue's vector", product.op.vector, algorithm.vector},
                  {"the epilogue's matrix", product.op.matrix, algorithm.matrix}};
  for (const auto& p : pointers)
    if (alignment_of(p.at) < p.wanted)
      return refusal(CUBLAS_STATUS_INVALID_VALUE, "%s at %p; the algorithm was asked for with %u bytes",
                     p.what, p.at, p.wanted);
  if (room.bytes < algorithm.workspace || (algorithm.workspace > 0 && alignment_of(room.at) < 256))
    return refusal(CUBLAS_STATUS_INVALID_VALUE,
                   "a workspace of %zu bytes at %p for an algorithm that wants %lu at a multiple of 256",
                   room.bytes, room.at, static_cast<unsigned long>(algorithm.workspace));
  return {};
}

uint64_t kind_of(const Described& p) {
  return mixed({uint64_t(p.op.compute), uint64_t(p.op.a), uint64_t(p.op.b), uint64_t(p.op.epilogue),
                uint64_t(p.op.vector_type + 1), uint64_t(p.a.type), uint64_t(p.b.type),
                uint64_t(p.op.a_scales), uint64_t(p.c.type)});
}

// The request seeds the draw, as in the library, so another alignment may give another algorithm.
std::vector<Algorithm> offered(const Described& product, const Wishes& wishes) {
  const uint64_t kind = kind_of(product);
  const bool epilogue = product.op.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  std::mt19937_64 random(
      mixed({kind, uint64_t(setting("PRODUCTS", setting("SEED", 1))), uint64_t(product.c.rows),
             uint64_t(product.c.columns), uint64_t(product.a.rows * product.a.columns), wishes.alignment[0],
             wishes.alignment[1], wishes.alignment[3]}));
  const bool none = int64_t(random() % 100) < setting("REFUSED", 0);
  if (epilogue && setting("EPILOGUES", 1) == 0) return {};
  if (none && (epilogue || sixteen_bits(product.a.type))) return {};
  std::vector<Algorithm> all;
  for (const Order order : {Order::ascending, Order::halves, Order::even_odd}) {
    if (order != Order::ascending && !(wishes.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) continue;
    const uint64_t workspace = order == Order::ascending ? 0 : random() % kMostWorkspace;
    if (workspace > wishes.workspace) continue;
    all.push_back(
        {kind,
         order,
         {wishes.alignment[0], wishes.alignment[1], std::max(wishes.alignment[2], wishes.alignment[3])},
         product.op.vector ? alignment_of(product.op.vector) : 1,
         product.op.matrix ? alignment_of(product.op.matrix) : 1,
         workspace,
         order == Order::ascending || random() % 10 != 0,
         0.01 + 1e-4 * double(random() % 1000)});
  }
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

cublasLtMatmulAlgo_t words_of(const Algorithm& a) {
  return {{kMade | uint64_t(a.order) << 32, a.kind, a.alignment[0] | uint64_t(a.alignment[1]) << 32,
           a.alignment[2], a.vector | uint64_t(a.matrix) << 32, a.workspace, uint64_t(a.milliseconds * 1e6),
           0}};
}

std::optional<Algorithm> algorithm_of(const cublasLtMatmulAlgo_t& words) {
  const uint64_t* w = words.data;
  const uint64_t order = w[0] >> 32;
  if (uint32_t(w[0]) != kMade || order < 1 || order > 3) return std::nullopt;
  return Algorithm{
      w[1],           Order(order),         {uint32_t(w[2]), uint32_t(w[2] >> 32), uint32_t(w[3])},
      uint32_t(w[4]), uint32_t(w[4] >> 32), w[5],
      true,           double(w[6]) * 1e-6};
}

}  // namespace interpreter
