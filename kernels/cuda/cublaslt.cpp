// Not in the build with CLEAVE_CUDA_INTERPRETER, which links a replacement of the library.
#include "kernels/cuda/cublaslt.h"

#include "device/cuda_library.h"

namespace cleave::kernels::gpu {
namespace {

CublasLt load_cublaslt() {
  CublasLt l{};
  CudaLibrary library(kCublasLt);
  library.find("cublasLtGetVersion", l.get_version);
  library.find("cublasLtGetStatusString", l.get_status_string);
  library.find("cublasLtCreate", l.create);
  library.find("cublasLtDestroy", l.destroy);
  library.find("cublasLtMatmul", l.matmul);
  library.find("cublasLtMatmulDescCreate", l.desc_create);
  library.find("cublasLtMatmulDescDestroy", l.desc_destroy);
  library.find("cublasLtMatmulDescSetAttribute", l.desc_set_attribute);
  library.find("cublasLtMatrixLayoutCreate", l.layout_create);
  library.find("cublasLtMatrixLayoutDestroy", l.layout_destroy);
  library.find("cublasLtMatmulPreferenceCreate", l.preference_create);
  library.find("cublasLtMatmulPreferenceDestroy", l.preference_destroy);
  library.find("cublasLtMatmulPreferenceSetAttribute", l.preference_set_attribute);
  library.find("cublasLtMatmulAlgoGetHeuristic", l.get_heuristic);
  library.find("cublasLtMatmulAlgoCheck", l.check_algorithm);
  l.problem = library.problem();
  return l;
}

}  // namespace

const CublasLt& loaded_cublaslt() {
  static const CublasLt* const once = new CublasLt(load_cublaslt());  // streams may end after static objects
  return *once;
}

}  // namespace cleave::kernels::gpu
