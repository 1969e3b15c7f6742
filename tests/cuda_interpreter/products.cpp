// The part of cuBLASLt that Cleave calls ("cuBLAS", The cuBLASLt API), computed on the CPU in fp32. Matrices
// count columns first.
#include <cublasLt.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/cuda_interpreter/calls.h"
#include "tests/cuda_interpreter/device_memory.h"
#include "tests/cuda_interpreter/floats.h"
#include "tests/cuda_interpreter/streams.h"

using namespace interpreter;

namespace {

struct Operation {
  cublasComputeType_t compute{};
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void *vector = nullptr, *matrix = nullptr;  // of the epilogue
  int vector_type = -1;                       // a cudaDataType_t; -1: that of the result
  int64_t matrix_stride = 0;
};
struct Layout {
  cudaDataType_t type;
  int64_t rows, columns, stride;
  size_t bytes() const { return size_t(stride * (columns - 1) + rows) * (type == CUDA_R_32F ? 4 : 2); }
};

float load(const void* p, cudaDataType_t type, int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(p)[i];
  const uint16_t bits = static_cast<const uint16_t*>(p)[i];
  return type == CUDA_R_16BF ? from_bf16(bits) : from_fp16(bits);
}
void store(void* p, cudaDataType_t type, int64_t i, float x) {
  if (type == CUDA_R_32F)
    static_cast<float*>(p)[i] = x;
  else
    static_cast<uint16_t*>(p)[i] = type == CUDA_R_16BF ? to_bf16(x) : to_fp16(x);
}

// What is left of a number in ten bits of fraction.
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

struct Call {
  Operation op;
  Layout a, b, c;
  const void *a_at, *b_at;
  void* c_at;
  float alpha, beta;

  int64_t m() const { return c.rows; }
  int64_t n() const { return c.columns; }
  int64_t k() const { return op.a == CUBLAS_OP_N ? a.columns : a.rows; }

  // By rows: op(a) [k, m], op(b) [n, k].
  std::vector<float> left() const {
    std::vector<float> x(size_t(m() * k()));
    for (int64_t i = 0; i < k(); ++i)
      for (int64_t j = 0; j < m(); ++j)
        x[size_t(i * m() + j)] =
            load(a_at, a.type, op.a == CUBLAS_OP_N ? i * a.stride + j : j * a.stride + i);
    return x;
  }
  std::vector<float> right() const {
    std::vector<float> x(size_t(n() * k()));
    for (int64_t j = 0; j < n(); ++j)
      for (int64_t i = 0; i < k(); ++i)
        x[size_t(j * k() + i)] =
            load(b_at, b.type, op.b == CUBLAS_OP_N ? j * b.stride + i : i * b.stride + j);
    return x;
  }

  void run() const {
    check_place(a_at, a.bytes(), "a"), check_place(b_at, b.bytes(), "b"), check_place(c_at, c.bytes(), "c");
    // What measures the machine's peak would take minutes. Nobody can take such a result for one.
    if (double(m()) * double(n()) * double(k()) > 0x1p34) {
      std::memset(c_at, 0xff, c.bytes());
      return;
    }
    std::vector<float> x = left(), y = right(), sum(static_cast<size_t>(m()));
    if (op.compute == CUBLAS_COMPUTE_32F_FAST_TF32)
      for (std::vector<float>* v : {&x, &y})
        for (float& value : *v) value = tf32(value);
    for (int64_t column = 0; column < n(); ++column) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      float total = 0;
      for (int64_t i = 0; i < k(); ++i) {
        const float factor = y[size_t(column * k() + i)];
        const float* row = x.data() + i * m();
        total += factor;
        for (int64_t j = 0; j < m(); ++j) sum[size_t(j)] += factor * row[j];
      }
      if (op.epilogue == CUBLASLT_EPILOGUE_BGRADB) store(op.vector, vector_type(), column, total);
      for (int64_t j = 0; j < m(); ++j) finish(j, column, alpha * sum[size_t(j)]);
    }
  }

  cudaDataType_t vector_type() const { return op.vector_type < 0 ? c.type : cudaDataType_t(op.vector_type); }

  void finish(int64_t row, int64_t column, float value) const {
    const int64_t at = column * c.stride + row, beside = column * op.matrix_stride + row;
    if (beta != 0) value += beta * load(c_at, c.type, at);
    switch (op.epilogue) {
      case CUBLASLT_EPILOGUE_BIAS:
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
};

template <class T>
cublasStatus_t set(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  return std::memcpy(&to, from, bytes), CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  CALL_OF_LIBRARY(cublasStatus_t);
  return *handle = reinterpret_cast<cublasLtHandle_t>(new int), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  CALL_OF_LIBRARY(cublasStatus_t);
  return delete reinterpret_cast<int*>(handle), CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "success"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported"
                                                 : "failed";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t) {
  CALL_OF_LIBRARY(cublasStatus_t);
  auto* op = new Operation;
  op->compute = compute;
  return *desc = reinterpret_cast<cublasLtMatmulDesc_t>(op), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  CALL_OF_LIBRARY(cublasStatus_t);
  return delete reinterpret_cast<Operation*>(desc), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t bytes) {
  CALL_OF_LIBRARY(cublasStatus_t);
  Operation& op = *reinterpret_cast<Operation*>(desc);
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(op.a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(op.b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(op.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(op.vector, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(op.vector_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(op.matrix, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(op.matrix_stride, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  CALL_OF_LIBRARY(cublasStatus_t);
  *layout =
      reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, int64_t(rows), int64_t(columns), stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  CALL_OF_LIBRARY(cublasStatus_t);
  return delete reinterpret_cast<Layout*>(layout), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
  CALL_OF_LIBRARY(cublasStatus_t);
  return *p = reinterpret_cast<cublasLtMatmulPreference_t>(new int), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  CALL_OF_LIBRARY(cublasStatus_t);
  return delete reinterpret_cast<int*>(p), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t, const void*,
                                                    size_t) {
  CALL_OF_LIBRARY(cublasStatus_t);
  return CUBLAS_STATUS_SUCCESS;
}

// As many as are asked for, so that what chooses among them has a choice; all compute the same.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  CALL_OF_LIBRARY(cublasStatus_t);
  const auto type = [](cublasLtMatrixLayout_t x) { return reinterpret_cast<Layout*>(x)->type; };
  *found = 0;
  if (type(a) != type(b) || (type(c) != type(a) && type(c) != CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (; *found < std::min(asked, 3); ++*found) {
    cublasLtMatmulHeuristicResult_t& r = results[*found];
    std::memset(&r, 0, sizeof r);
    r.algo.data[0] = uint64_t(*found) + 1, r.state = CUBLAS_STATUS_SUCCESS, r.wavesCount = 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  CALL_OF_LIBRARY(cublasStatus_t);
  std::memset(result, 0, sizeof *result);
  return result->algo = *algorithm, CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t la, const void* b, cublasLtMatrixLayout_t lb,
                              const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t*, void*, size_t,
                              cudaStream_t s) {
  CALL_OF_LIBRARY(cublasStatus_t);
  if (c != d) return CUBLAS_STATUS_NOT_SUPPORTED;
  const Call call{*reinterpret_cast<Operation*>(desc),
                  *reinterpret_cast<Layout*>(la),
                  *reinterpret_cast<Layout*>(lb),
                  *reinterpret_cast<Layout*>(ld),
                  a,
                  b,
                  d,
                  *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta)};
  try {
    streams().give(reinterpret_cast<Stream*>(s),
                   {"a product", [call](std::mt19937_64&) { call.run(); }, {}, {}, "product"});
    return CUBLAS_STATUS_SUCCESS;
  } catch (const Defect&) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
}

}  // extern "C"
