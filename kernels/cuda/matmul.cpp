// Matrix products through cuBLASLt. The library counts columns first, and a row-major matrix is its transpose
// there: c = a b becomes c^T = b^T a^T, so the library's first operand is b and its m is n.
#include "kernels/matmul.h"

#include <cublasLt.h>

#include <map>
#include <tuple>

#include "device/cuda/queue.h"
#include "kernels/elementwise.h"

namespace cleave::gpu {
namespace {

void check(cublasStatus_t status, const char* call, const CudaQueue& queue) {
  CHECK(status == CUBLAS_STATUS_SUCCESS, "{} on cuda:{}: {}", call, queue.device(),
        cublasLtGetStatusString(status));
}

cudaDataType_t type_of(DType t) {
  return t == DType::fp32 ? CUDA_R_32F : t == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

// A product's shape and types: what decides the library's choice.
struct Shape3 {
  int64_t m, n, k;
  DType c, ab;
  bool transpose_a, transpose_b, accumulate, bias;
  int alignment;  // of all pointers, a power of two up to 256
  auto operator<=>(const Shape3&) const = default;
};

// Owns a description of the library's; all of them are destroyed with one function each.
template <class T, cublasStatus_t (*destroy)(T)>
struct Owned {
  T value = nullptr;
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (value) destroy(value);
  }
};

struct Product {
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> op;
  Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> a, b, c;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;
};

// A stream's handle and the choices made on it.
struct Products {
  Owned<cublasLtHandle_t, cublasLtDestroy> handle;
  std::map<Shape3, Product> known;
};

Products& products_of(CudaQueue& queue) {
  if (!queue.products) {
    auto fresh = std::make_shared<Products>();
    queue.use();
    check(cublasLtCreate(&fresh->handle.value), "cublasLtCreate", queue);
    queue.products = fresh;
  }
  return *static_cast<Products*>(queue.products.get());
}

void describe(Product& p, const Shape3& s, CudaQueue& queue) {
  auto set = [&](cublasLtMatmulDescAttributes_t what, auto value) {
    check(cublasLtMatmulDescSetAttribute(p.op.value, what, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute", queue);
  };
  // fp32 operands are multiplied as they are: TF32 would drop thirteen bits of them.
  check(cublasLtMatmulDescCreate(&p.op.value, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate",
        queue);
  set(CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (s.bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  if (s.bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(s.c));
  auto layout = [&](cublasLtMatrixLayout_t& x, DType t, int64_t rows, int64_t columns) {
    check(cublasLtMatrixLayoutCreate(&x, type_of(t), uint64_t(rows), uint64_t(columns), rows),
          "cublasLtMatrixLayoutCreate", queue);
  };
  layout(p.a.value, s.ab, s.transpose_b ? s.k : s.n, s.transpose_b ? s.n : s.k);
  layout(p.b.value, s.ab, s.transpose_a ? s.m : s.k, s.transpose_a ? s.k : s.m);
  layout(p.c.value, s.c, s.n, s.m);
}

void choose(Product& p, const Shape3& s, cublasLtHandle_t handle, CudaQueue& queue) {
  Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
  check(cublasLtMatmulPreferenceCreate(&preference.value), "cublasLtMatmulPreferenceCreate", queue);
  auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference.value, what, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute", queue);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(queue.product_scratch().bytes()));
  // Sums split over blocks would be added in an order of their own only within one launch; no atomics all the
  // same.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto what :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(what, uint32_t(s.alignment));
  cublasLtMatmulHeuristicResult_t result{};
  int results = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, p.op.value, p.a.value, p.b.value, p.c.value, p.c.value, preference.value, 1, &result, &results);
  p.found = status == CUBLAS_STATUS_SUCCESS && results > 0;
  p.algorithm = result.algo;
}

int alignment_of(std::initializer_list<Tensor> tensors) {
  int common = 256;
  for (const Tensor& t : tensors)
    while (reinterpret_cast<uintptr_t>(t.raw()) % uintptr_t(common)) common /= 2;
  return common;
}

// Types that the library multiplies: a and b alike, c of their type or fp32.
bool direct(const Matmul& op) {
  return op.a.dtype() == op.b.dtype() && (op.c.dtype() == op.a.dtype() || op.c.dtype() == DType::fp32);
}

// False when the library has no kernel for it.
bool multiply(const Matmul& op, CudaQueue& queue) {
  const Shape3 shape{.m = op.m(),
                     .n = op.n(),
                     .k = op.k(),
                     .c = op.c.dtype(),
                     .ab = op.a.dtype(),
                     .transpose_a = op.transpose_a,
                     .transpose_b = op.transpose_b,
                     .accumulate = op.accumulate,
                     .bias = op.bias.defined(),
                     .alignment = alignment_of({op.a, op.b, op.c, op.bias})};
  Products& products = products_of(queue);
  const auto [at, added] = products.known.try_emplace(shape);
  Product& p = at->second;
  if (added) {
    describe(p, shape, queue);
    choose(p, shape, products.handle.value, queue);
  }
  if (!p.found) return false;
  if (const void* bias = op.bias.raw())
    check(cublasLtMatmulDescSetAttribute(p.op.value, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias),
          "cublasLtMatmulDescSetAttribute", queue);
  const float alpha = 1, beta = op.accumulate ? 1.0f : 0.0f;
  const Tensor scratch = queue.product_scratch();
  check(cublasLtMatmul(products.handle.value, p.op.value, &alpha, op.b.raw(), p.a.value, op.a.raw(),
                       p.b.value, &beta, op.c.raw(), p.c.value, op.c.raw(), p.c.value, &p.algorithm,
                       scratch.raw(), size_t(scratch.bytes()), queue.use()),
        "cublasLtMatmul", queue);
  return true;
}

// Hands out pieces of the stream's scratch for one op; a cast itself needs none.
class Pieces {
 public:
  Pieces(CudaQueue& queue, Stream& stream) : queue_(queue), stream_(stream) {}
  Tensor take(Shape shape) {
    const int64_t begin = used_;
    used_ += round_up(shape.numel() * size_of(DType::fp32), 256);
    return {static_cast<std::byte*>(queue_.scratch(used_)) + begin, DType::fp32, shape};
  }
  Tensor as_float(const Tensor& x) {
    if (!x.defined() || x.dtype() == DType::fp32) return x;
    const Tensor y = take(x.shape());
    launch(Cast{.y = y, .x = x}, stream_);
    return y;
  }

 private:
  CudaQueue& queue_;
  Stream& stream_;
  int64_t used_ = 0;
};

// Mixes of types that no training step asks for: everything in fp32, then rounded.
void multiply_in_float(const Matmul& op, CudaQueue& queue, Stream& stream) {
  Pieces pieces(queue, stream);
  Matmul wide = op;
  wide.a = pieces.as_float(op.a), wide.b = pieces.as_float(op.b), wide.bias = pieces.as_float(op.bias);
  const bool rounds = op.c.dtype() != DType::fp32;
  if (rounds) wide.c = pieces.take(op.c.shape()), wide.accumulate = false;
  CHECK(multiply(wide, queue), "cuBLASLt has no kernel for a product of {} x {} x {} in fp32", op.m(), op.n(),
        op.k());
  if (rounds && op.accumulate)
    launch(Axpy{.y = op.c, .x = wide.c}, stream);
  else if (rounds)
    launch(Cast{.y = op.c, .x = wide.c}, stream);
}

// Without terms a product is zero, or the bias.
void fill_rows(const Matmul& op, Stream& stream) {
  if (op.accumulate) return;
  if (!op.bias.defined()) return launch(Fill{.y = op.c}, stream);
  for (int64_t row = 0; row < op.m(); ++row)
    launch(Cast{.y = op.c.rows({row, row + 1}), .x = op.bias}, stream);
}

}  // namespace

void run(const Matmul& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  if (op.c.numel() == 0) return;
  if (op.k() == 0) return fill_rows(op, stream);
  Matmul same = op;
  if (op.bias.defined() && op.bias.dtype() != op.c.dtype() && direct(op)) {
    // The library adds a bias of the result's type only.
    same.bias = Tensor(queue.scratch(op.n() * size_of(op.c.dtype())), op.c.dtype(), {op.n()});
    launch(Cast{.y = same.bias, .x = op.bias}, stream);
  }
  if (direct(op) && multiply(same, queue)) return;
  multiply_in_float(op, queue, stream);
}

}  // namespace cleave::gpu
