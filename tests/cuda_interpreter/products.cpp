// The functions of cuBLASLt that Cleave calls ("cuBLAS", The cuBLASLt API). Checks the documented
// rules for operands (product_rules.h), offers algorithms that add in different orders, and none
// for some shapes.
#include <cublasLt.h>

#include <algorithm>
#include <cstring>

#include "tests/cuda_interpreter/calls.h"
#include "tests/cuda_interpreter/device_memory.h"
#include "tests/cuda_interpreter/product_rules.h"
#include "tests/cuda_interpreter/runtime_calls.h"
#include "tests/cuda_interpreter/streams.h"

using namespace interpreter;

namespace {

struct Library {
  int device = 0;
};

template <class T>
cublasStatus_t set(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  return std::memcpy(&to, from, bytes), CUBLAS_STATUS_SUCCESS;
}

const Layout& layout_of(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<Layout*>(layout); }

// Reports the rule that a product breaks.
cublasStatus_t broken(const Refusal& why) {
  std::fprintf(stderr, "cuda interpreter: cuBLASLt: %s\n", why.text.c_str());
  return why.status;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  CALL_OF_LIBRARY(cublasStatus_t);
  auto* made = new Library;
  cudaGetDevice(&made->device);
  return *handle = reinterpret_cast<cublasLtHandle_t>(made), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  CALL_OF_LIBRARY(cublasStatus_t);
  return delete reinterpret_cast<Library*>(handle), CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "success"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported"
                                                 : "failed";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  CALL_OF_LIBRARY(cublasStatus_t);
  auto* op = new Operation;
  op->compute = compute, op->scale = scale;
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
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return set(op.a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return set(op.b_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return set(op.a_scales, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return set(op.b_scales, value, bytes);
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
  return *p = reinterpret_cast<cublasLtMatmulPreference_t>(new Wishes), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  CALL_OF_LIBRARY(cublasStatus_t);
  return delete reinterpret_cast<Wishes*>(p), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, size_t bytes) {
  CALL_OF_LIBRARY(cublasStatus_t);
  Wishes& wishes = *reinterpret_cast<Wishes*>(p);
  switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(wishes.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(wishes.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(wishes.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(wishes.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(wishes.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(wishes.alignment[3], value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  CALL_OF_LIBRARY(cublasStatus_t);
  *found = 0;
  const Described product{*reinterpret_cast<Operation*>(desc), layout_of(a), layout_of(b), layout_of(c)};
  if (const Refusal no = problem_of(product)) return broken(no);
  for (const Algorithm& algorithm : offered(product, *reinterpret_cast<Wishes*>(preference))) {
    if (*found == asked) break;
    cublasLtMatmulHeuristicResult_t& r = results[(*found)++];
    std::memset(&r, 0, sizeof r);
    r.algo = words_of(algorithm), r.workspaceSize = algorithm.workspace;
    r.state = algorithm.works ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    r.wavesCount = 1;
  }
  return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// Never updates the result's algorithm.
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t* words,
                                       cublasLtMatmulHeuristicResult_t* result) {
  CALL_OF_LIBRARY(cublasStatus_t);
  const Described product{*reinterpret_cast<Operation*>(desc), layout_of(a), layout_of(b), layout_of(c)};
  if (const Refusal no = problem_of(product)) return broken(no);
  const std::optional<Algorithm> algorithm = algorithm_of(*words);
  if (!algorithm || algorithm->kind != kind_of(product)) return CUBLAS_STATUS_INVALID_VALUE;
  result->workspaceSize = algorithm->workspace, result->state = CUBLAS_STATUS_SUCCESS;
  return result->wavesCount = 1, CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t la, const void* b,
                              cublasLtMatrixLayout_t lb, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t* words, void* workspace, size_t bytes,
                              cudaStream_t s) {
  const InDriver in_driver;
  CALL_OF_LIBRARY(cublasStatus_t);
  if (c != d) return CUBLAS_STATUS_NOT_SUPPORTED;
  const Described product{*reinterpret_cast<Operation*>(desc), layout_of(la), layout_of(lb), layout_of(ld)};
  auto* stream = reinterpret_cast<Stream*>(s);
  const std::optional<Algorithm> algorithm = algorithm_of(*words);
  if (!algorithm) return broken({CUBLAS_STATUS_INVALID_VALUE, "an algorithm that it did not make"});
  if (stream->device != reinterpret_cast<Library*>(handle)->device)
    return broken({CUBLAS_STATUS_INVALID_VALUE, "a stream of another GPU than the handle's"});
  if (const Refusal no = problem_of(product, *algorithm, {a, b, d}, {workspace, bytes})) return broken(no);
  const MatrixProduct work{product.op,
                           product.a,
                           product.b,
                           product.c,
                           a,
                           b,
                           d,
                           *static_cast<const float*>(alpha),
                           *static_cast<const float*>(beta),
                           algorithm->order};
  const auto run = [work, workspace, used = algorithm->workspace](std::mt19937_64&) {
    if (used > 0 && !device_memory().holds(workspace, used))
      throw Defect("cublasLtMatmul, the workspace: " + device_memory().problem(workspace, used));
    if (used > 0) std::memset(workspace, 0xff, used);
    work.run();
  };
  try {
    streams().give(stream, {"a product", run, {}, {}, "product", algorithm->milliseconds});
    return CUBLAS_STATUS_SUCCESS;
  } catch (const Defect&) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
}

}  // extern "C"
