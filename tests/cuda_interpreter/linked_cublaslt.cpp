// The replacement of cuBLASLt (products.cpp), which the build with CLEAVE_CUDA_INTERPRETER links instead of
// loading the library. If CLEAVE_CUBLASLT names a file that does not load, the problem is that of other
// builds.
#include "core/environment.h"
#include "device/cuda_library.h"
#include "kernels/cuda/cublaslt.h"

namespace cleave::kernels::gpu {

const CublasLt& loaded_cublaslt() {
  static const CublasLt linked{
      .get_version = cublasLtGetVersion,
      .get_status_string = cublasLtGetStatusString,
      .create = cublasLtCreate,
      .destroy = cublasLtDestroy,
      .matmul = cublasLtMatmul,
      .desc_create = cublasLtMatmulDescCreate,
      .desc_destroy = cublasLtMatmulDescDestroy,
      .desc_set_attribute = cublasLtMatmulDescSetAttribute,
      .layout_create = cublasLtMatrixLayoutCreate,
      .layout_destroy = cublasLtMatrixLayoutDestroy,
      .preference_create = cublasLtMatmulPreferenceCreate,
      .preference_destroy = cublasLtMatmulPreferenceDestroy,
      .preference_set_attribute = cublasLtMatmulPreferenceSetAttribute,
      .get_heuristic = cublasLtMatmulAlgoGetHeuristic,
      .check_algorithm = cublasLtMatmulAlgoCheck,
      .problem = environment_value(kCublasLt.variable).empty() ? "" : CudaLibrary(kCublasLt).problem()};
  return linked;
}

}  // namespace cleave::kernels::gpu
