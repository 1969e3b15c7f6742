// Functions of cuBLASLt.
#pragma once
#include <cublasLt.h>

#include <string>

namespace cleave::kernels::gpu {

struct CublasLt {
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtGetStatusString) get_status_string;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set_attribute;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set_attribute;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
  decltype(&cublasLtMatmulAlgoCheck) check_algorithm;
  std::string problem = {};
};

// Loads the library at the first call; never throws. Functions are null with a problem.
const CublasLt& loaded_cublaslt();

// Throws Error(usage) with the action if the library cannot be used.
const CublasLt& cublaslt();

}  // namespace cleave::kernels::gpu
