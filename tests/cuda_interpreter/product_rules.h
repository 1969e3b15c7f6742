// Requirements of cuBLASLt for operands of a product, from its header and documentation, and the
// algorithms offered here.
#pragma once
#include <optional>

#include "tests/cuda_interpreter/matrix_product.h"

namespace interpreter {

// A product without its buffers.
struct Described {
  Operation op;
  Layout a, b, c;
};

// Request to a heuristic, with the library's defaults.
struct Wishes {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of a, b, c and d
};

struct Algorithm {
  uint64_t kind;  // kind_of() of its product
  Order order;
  uint32_t alignment[3];    // required, of a, b and the result
  uint32_t vector, matrix;  // of the epilogue's pointers at the request
  uint64_t workspace;
  bool works = true;
  double milliseconds = 0;  // reported time
};

struct Refusal {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  std::string text;
  explicit operator bool() const { return status != CUBLAS_STATUS_SUCCESS; }
};

struct Buffers {
  const void *a, *b, *result;
};
struct Room {
  const void* at;
  size_t bytes;
};

// Checks types, shapes, leading dimensions and the epilogue.
Refusal problem_of(const Described& product);
// Also checks the requirements of an algorithm.
Refusal problem_of(const Described& product, const Algorithm& algorithm, const Buffers& at, const Room& room);

// Returns a hash of types, transposition and epilogue, which an algorithm depends on for any shape.
uint64_t kind_of(const Described& product);

// Returns algorithms, best first; a tenth of them do not work. Empty for CUDA_INTERPRETER_REFUSED
// percent, at random, of the products in 16 bits or with an epilogue, and with
// CUDA_INTERPRETER_EPILOGUES=0 for every epilogue.
std::vector<Algorithm> offered(const Described& product, const Wishes& wishes);

// Returns the algorithm as plain words, which a program may store.
cublasLtMatmulAlgo_t words_of(const Algorithm& algorithm);
std::optional<Algorithm> algorithm_of(const cublasLtMatmulAlgo_t& words);

}  // namespace interpreter
