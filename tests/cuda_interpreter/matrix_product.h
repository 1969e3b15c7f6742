// One product of cuBLASLt as its caller describes it. Matrices are column-major.
#pragma once
#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace interpreter {

struct Operation {
  cublasComputeType_t compute{};
  cudaDataType_t scale = CUDA_R_32F;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void *vector = nullptr, *matrix = nullptr;  // of the epilogue
  int vector_type = -1;                       // a cudaDataType_t; -1: that of the result
  int64_t matrix_stride = 0;
  const void *a_scale = nullptr, *b_scale = nullptr;  // of 8-bit operands; null: 1
  int32_t a_scales = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
          b_scales = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;

  bool has_bias() const;    // reads a vector
  bool has_matrix() const;  // reads or writes a second matrix
};

struct Layout {
  cudaDataType_t type;
  int64_t rows, columns, stride;
  size_t bytes() const { return size_t(stride * (columns - 1) + rows) * element(); }
  size_t element() const { return type == CUDA_R_32F ? 4 : eight_bits() ? 1 : 2; }
  bool eight_bits() const { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
};

// Order of adding the terms of a sum: sequentially; in two halves that are then added; the
// even ones, then the odd ones.
enum class Order : uint64_t { ascending = 1, halves, even_odd };

struct MatrixProduct {
  Operation op;
  Layout a, b, c;
  const void *a_at, *b_at;
  void* c_at;
  float alpha, beta;
  Order order;

  int64_t m() const { return c.rows; }
  int64_t n() const { return c.columns; }
  int64_t k() const { return op.a == CUBLAS_OP_N ? a.columns : a.rows; }
  cudaDataType_t vector_type() const { return op.vector_type < 0 ? c.type : cudaDataType_t(op.vector_type); }

  // Runs on the CPU in fp32. Throws Defect if an operand is not in a GPU's memory.
  void run() const;

 private:
  std::vector<float> left() const;
  std::vector<float> right() const;
  std::vector<int64_t> terms() const;
  void check_places() const;
  float scale(int64_t row, int64_t column) const;
  // Returns true if cuBLASLt 13.1 would round the product to 16 bits before it adds the bias, as it
  // does for unaligned rows.
  bool rounds_before_bias() const;
  void finish(int64_t row, int64_t column, float value) const;
};

}  // namespace interpreter
