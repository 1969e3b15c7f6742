// What cuBLASLt asks of a product's operands, by its header and its documentation, and the algorithms that it
// offers for one here.
#pragma once
#include <optional>

#include "tests/cuda_interpreter/matrix_product.h"

namespace interpreter {

// A product but for its buffers.
struct Described {
  Operation op;
  Layout a, b, c;
};

// What a heuristic is asked for; where nothing is said, what the library takes.
struct Wishes {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of a, b, c and d
};

struct Algorithm {
  uint64_t kind;  // kind_of() what it was made for
  Order order;
  uint32_t alignment[3];    // that it relies on, of a, b and the result
  uint32_t vector, matrix;  // and of the epilogue's pointers, as they were when it was asked for
  uint64_t workspace;
  bool works = true;
  double milliseconds = 0;  // that it is said to take
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

// Types, shapes, leading dimensions and the epilogue.
Refusal problem_of(const Described& product);
// The same, and what an algorithm relies on.
Refusal problem_of(const Described& product, const Algorithm& algorithm, const Buffers& at, const Room& room);

// Of types, transposition and epilogue: what an algorithm is good for, whatever the shape.
uint64_t kind_of(const Described& product);

// Best first; a tenth of what is offered does not work. Empty for CUDA_INTERPRETER_REFUSED percent, drawn, of
// the products in 16 bits or with an epilogue, and with CUDA_INTERPRETER_EPILOGUES=0 for every epilogue.
std::vector<Algorithm> offered(const Described& product, const Wishes& wishes);

// As the library's plain words, which a program may keep.
cublasLtMatmulAlgo_t words_of(const Algorithm& algorithm);
std::optional<Algorithm> algorithm_of(const cublasLtMatmulAlgo_t& words);

}  // namespace interpreter
