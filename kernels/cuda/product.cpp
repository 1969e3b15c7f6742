// The library is column major, and a row-major matrix is its transpose there: c = a b becomes c^T = b^T a^T,
// so its first operand is b and its m is n.
#include "kernels/cuda/product.h"

#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/choices.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/measure.h"
#include "kernels/fp8.h"
#include "kernels/matmul_ways.h"

namespace cleave::kernels::gpu {
namespace {

void check(cublasStatus_t status, const char* call, const CudaQueue& queue) {
  CHECK(status == CUBLAS_STATUS_SUCCESS, "{} on cuda:{}: {}", call, queue.device(),
        cublaslt().get_status_string(status));
}

cudaDataType_t type_of(DType t) {
  switch (t) {
    case DType::fp32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::fp8_e4m3:
      return CUDA_R_8F_E4M3;
    case DType::fp8_e5m2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_16F;
  }
}

// Scales per operand: none, one number, or one per row.
enum class Scales : uint8_t { none, one, rows };

// Shape and types of a product, which determine the library's choice.
struct Shape3 {
  int64_t m, n, k;
  DType c, a, b;
  Scales scales;
  bool transpose_a, transpose_b, accumulate, bias, tf32;
  Epilogue epilogue;
  int alignment;  // of all pointers, a power of two up to kAlignment
  auto operator<=>(const Shape3&) const = default;
};

// Owns a library descriptor with its destroy function.
template <class T, auto destroy>
struct Owned {
  T value = nullptr;
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (value) (cublaslt().*destroy)(value);
  }
};

struct Choice {
  Owned<cublasLtMatmulDesc_t, &CublasLt::desc_destroy> op;
  Owned<cublasLtMatrixLayout_t, &CublasLt::layout_destroy> a, b, c;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;

  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, T value, CudaQueue& queue) {
    check(cublaslt().desc_set_attribute(op.value, what, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute", queue);
  }
  // Sets the vector and the second matrix of the epilogue.
  void point(const void* vector, const void* matrix, CudaQueue& queue) {
    if (vector) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector, queue);
    if (matrix) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, matrix, queue);
  }
  // Sets the scales of the operands: the library's first operand is our second.
  void point_scales(const void* of_a, const void* of_b, CudaQueue& queue) {
    if (of_b) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b, queue);
    if (of_a) set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a, queue);
  }
};

// Handle of a stream and the choices made on it.
struct Products {
  Owned<cublasLtHandle_t, &CublasLt::destroy> handle;
  std::map<Shape3, Choice> known;
};

Products& products_of(CudaQueue& queue) {
  if (!queue.products) {
    auto fresh = std::make_shared<Products>();
    queue.use();
    check(cublaslt().create(&fresh->handle.value), "cublasLtCreate", queue);
    queue.products = fresh;
  }
  return *static_cast<Products*>(queue.products.get());
}

Tensor scratch_of(CudaQueue& queue) {
  const Tensor all = queue.product_scratch();
  return all.slice({0, std::min(Untouched::kBehind, all.numel())});
}

bool reads_matrix(Epilogue e) { return e == Epilogue::gelu || e == Epilogue::gelu_gradient; }

cublasLtEpilogue_t name_for_library(const Shape3& s) {
  switch (s.epilogue) {
    case Epilogue::none:
      return s.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::gelu:
      return s.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::gelu_gradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::bias_gradient:
      return CUBLASLT_EPILOGUE_BGRADB;  // its second operand is our first
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// Describes the first `rows` rows of the product.
void describe(Choice& p, const Shape3& s, int64_t rows, CudaQueue& queue) {
  auto set = [&](cublasLtMatmulDescAttributes_t what, auto value) { p.set(what, value, queue); };
  // TF32 drops thirteen bits of the operands.
  const cublasComputeType_t compute = s.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(cublaslt().desc_create(&p.op.value, compute, CUDA_R_32F), "cublasLtMatmulDescCreate", queue);
  set(CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, name_for_library(s));
  if (s.bias || s.epilogue == Epilogue::bias_gradient) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(s.c));
  if (reads_matrix(s.epilogue)) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.n);
  if (s.scales == Scales::rows)
    for (const auto mode : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
      set(mode, int32_t(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F));
  auto layout = [&](cublasLtMatrixLayout_t& x, DType t, int64_t height, int64_t columns, int64_t stride) {
    check(cublaslt().layout_create(&x, type_of(t), uint64_t(height), uint64_t(columns), stride),
          "cublasLtMatrixLayoutCreate", queue);
  };
  if (s.transpose_b)
    layout(p.a.value, s.b, s.k, s.n, s.k);
  else
    layout(p.a.value, s.b, s.n, s.k, s.n);
  if (s.transpose_a)
    layout(p.b.value, s.a, rows, s.k, s.m);
  else
    layout(p.b.value, s.a, s.k, rows, s.k);
  layout(p.c.value, s.c, s.n, rows, s.n);
}

constexpr int kMostProposals = 32;

// Algorithms proposed by the library for the shape, best first.
std::vector<cublasLtMatmulAlgo_t> proposals(const Choice& p, const Shape3& s, cublasLtHandle_t handle,
                                            CudaQueue& queue) {
  Owned<cublasLtMatmulPreference_t, &CublasLt::preference_destroy> preference;
  check(cublaslt().preference_create(&preference.value), "cublasLtMatmulPreferenceCreate", queue);
  auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    check(cublaslt().preference_set_attribute(preference.value, what, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute", queue);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(scratch_of(queue).bytes()));
  // Excludes atomics, although split sums would vary in order only within one launch.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto what :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(what, uint32_t(s.alignment));
  std::array<cublasLtMatmulHeuristicResult_t, kMostProposals> results{};
  int count = 0;
  const cublasStatus_t status =
      cublaslt().get_heuristic(handle, p.op.value, p.a.value, p.b.value, p.c.value, p.c.value,
                               preference.value, kMostProposals, results.data(), &count);
  std::vector<cublasLtMatmulAlgo_t> found;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i)
    if (results[size_t(i)].state == CUBLAS_STATUS_SUCCESS) found.push_back(results[size_t(i)].algo);
  return found;
}

// The name of a choice contains everything that it depends on.
std::string name_of(const Shape3& s, const CudaQueue& queue) {
  const std::string types =
      s.a == s.b ? std::string(name_of(s.a)) : fmt::format("{} and {}", name_of(s.a), name_of(s.b));
  return fmt::format("product {} x {} x {} {} of {}{}{}{}{}{}{}, epilogue {}, aligned {}, {}", s.m, s.n, s.k,
                     name_of(s.c), types, s.scales == Scales::rows ? " scaled by rows" : "",
                     s.transpose_a ? " a^T" : "", s.transpose_b ? " b^T" : "", s.accumulate ? " added" : "",
                     s.bias ? " with bias" : "", s.tf32 ? " in tf32" : "", int(s.epilogue), s.alignment,
                     place_of_choices(queue));
}

// Encodes library algorithms, which are plain numbers of one library version. The text may be followed by the
// way it was chosen.
std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}
std::optional<cublasLtMatmulAlgo_t> algorithm_of(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm{};
  constexpr size_t kDigits = 16;
  if (text.substr(0, text.find(' ')).size() != std::size(algorithm.data) * kDigits) return std::nullopt;
  for (size_t i = 0; i < std::size(algorithm.data); ++i) {
    const char *first = text.data() + i * kDigits, *last = first + kDigits;
    if (std::from_chars(first, last, algorithm.data[i], 16).ptr != last) return std::nullopt;
  }
  return algorithm;
}

// Alignment of tensors in arenas, buckets and pools. Placement must not change the algorithm, and no
// algorithm loads more than 16 bytes at a time.
constexpr int kAlignment = 64;

int alignment_of(std::initializer_list<Tensor> tensors) {
  int common = kAlignment;
  for (const Tensor& t : tensors)
    while (reinterpret_cast<uintptr_t>(t.raw()) % uintptr_t(common)) common /= 2;
  return common;
}

// An address that must not be accessed, with the common alignment of the shape's pointers.
const void* aligned_like(const void* p, const Shape3& s) {
  return p ? reinterpret_cast<const void*>(uintptr_t(s.alignment)) : nullptr;
}

// Returns true if the stored rows of all matrices are aligned to 16 bytes.
bool has_aligned_rows(const Shape3& s) {
  const auto aligned = [](int64_t elements, DType t) { return elements * size_of(t) % 16 == 0; };
  return s.alignment >= 16 && aligned(s.n, s.c) && aligned(s.transpose_a ? s.m : s.k, s.a) &&
         aligned(s.transpose_b ? s.k : s.n, s.b);
}

// The library requires 16-byte aligned rows of the second matrix, and of all matrices in FP8. With unaligned
// rows it adds a bias in a separate kernel, after rounding the product to 16 bits.
bool fits(const Shape3& s) {
  if (s.bias && s.c != DType::fp32 && !has_aligned_rows(s)) return false;
  if (s.scales != Scales::none) return s.n % kFp8Terms == 0 && s.alignment >= 16;
  return !reads_matrix(s.epilogue) || (s.n % 8 == 0 && s.alignment >= 16);
}

cublasStatus_t run(const Choice& p, const cublasLtMatmulAlgo_t& algorithm, const Product& product,
                   cublasLtHandle_t handle, CudaQueue& queue) {
  const Matmul& op = product.op;
  const float alpha = 1, beta = op.accumulate ? 1.0f : 0.0f;
  const Tensor scratch = scratch_of(queue);
  return cublaslt().matmul(handle, p.op.value, &alpha, op.b.raw(), p.a.value, op.a.raw(), p.b.value, &beta,
                           op.c.raw(), p.c.value, op.c.raw(), p.c.value, &algorithm, scratch.raw(),
                           size_t(scratch.bytes()), queue.use());
}

// Rows of an accumulating product that are measured: as many as a saved copy has space for; 0 if too few.
int64_t rows_to_measure(const Shape3& s, const CudaQueue& queue) {
  constexpr int64_t kFewest = 256;
  if (!s.accumulate) return s.m;
  const int64_t row = s.n * size_of(s.c);
  const int64_t rows = std::min(s.m, std::max<int64_t>(0, Untouched::room(queue)) / row);
  return rows == s.m ? rows : rows < kFewest ? 0 : rows / kFewest * kFewest;
}

constexpr const char* kFirstUnmeasured = "the first, because the scratch is too small to measure";

// Name of the fastest offered algorithm, and the number of measured rows if not all were measured.
std::string measured(const std::vector<cublasLtMatmulAlgo_t>& offered, const Shape3& s,
                     const Product& product, cublasLtHandle_t handle, CudaQueue& queue) {
  const int64_t rows = rows_to_measure(s, queue);
  if (rows == 0) return kFirstUnmeasured;
  Choice part;
  describe(part, s, rows, queue);
  part.point(product.dbias.defined() ? product.dbias.raw() : product.op.bias.raw(), product.hidden.raw(),
             queue);
  part.point_scales(product.a_scales.raw(), product.b_scales.raw(), queue);
  const Untouched untouched(queue,
                            s.accumulate ? std::vector{product.op.c.rows({0, rows})} : std::vector<Tensor>{});
  CHECK(untouched.fits(), "{} rows of a sum do not fit where they should", rows);
  float least = INFINITY;
  cublasLtMatmulAlgo_t fastest = offered.front();
  for (const cublasLtMatmulAlgo_t& one : offered) {
    const float taken = milliseconds_of(
        queue, [&] { return run(part, one, product, handle, queue) == CUBLAS_STATUS_SUCCESS; });
    if (taken < least) least = taken, fastest = one;
  }
  untouched.restore();
  return text_of(fastest) + (rows < s.m ? fmt::format(" by {} of {} rows", rows, s.m) : "");
}

// Chooses the algorithm of an earlier run or another stream, else the fastest measured one; without
// measurements, the library's first proposal.
void choose(Choice& p, const Shape3& s, const Product& product, cublasLtHandle_t handle, CudaQueue& queue) {
  const std::vector<cublasLtMatmulAlgo_t> offered = proposals(p, s, handle, queue);
  p.found = !offered.empty();
  if (!p.found) return;
  p.algorithm = offered.front();
  if (!queue.measures) return;
  Choices& choices = Choices::of_process();
  const std::string name = name_of(s, queue);
  std::optional<std::string> chosen = choices.find(name);
  if (!chosen && !queue.capturing() && offered.size() > 1) {
    const std::string fastest = measured(offered, s, product, handle, queue);
    chosen = choices.keep(
        name, fastest, fastest == kFirstUnmeasured ? Choices::Reason::no_space : Choices::Reason::measured);
  }
  const auto algorithm = chosen ? algorithm_of(*chosen) : std::nullopt;
  if (!algorithm) return;
  cublasLtMatmulHeuristicResult_t judged{};
  const bool works = cublaslt().check_algorithm(handle, p.op.value, p.a.value, p.b.value, p.c.value,
                                                p.c.value, &*algorithm, &judged) == CUBLAS_STATUS_SUCCESS &&
                     int64_t(judged.workspaceSize) <= scratch_of(queue).bytes();
  if (works) p.algorithm = *algorithm;
}

}  // namespace

const CublasLt& cublaslt() {
  const CublasLt& library = loaded_cublaslt();
  require(library.problem.empty(), Exit::usage, "{}", library.problem);
  return library;
}

bool multiply(const Product& product, CudaQueue& queue) {
  const Matmul& op = product.op;
  const Shape3 shape{.m = op.m(),
                     .n = op.n(),
                     .k = op.k(),
                     .c = op.c.dtype(),
                     .a = op.a.dtype(),
                     .b = op.b.dtype(),
                     .scales = !product.a_scales.defined() ? Scales::none
                               : product.a_scales.numel() == 1 && product.b_scales.numel() == 1
                                   ? Scales::one
                                   : Scales::rows,
                     .transpose_a = op.transpose_a,
                     .transpose_b = op.transpose_b,
                     .accumulate = op.accumulate,
                     .bias = op.bias.defined(),
                     .tf32 = queue.tf32 && op.a.dtype() == DType::fp32,
                     .epilogue = product.epilogue,
                     .alignment = alignment_of({op.a, op.b, op.c, op.bias, product.hidden, product.dbias})};
  if (!fits(shape)) return false;
  Products& products = products_of(queue);
  const auto [at, added] = products.known.try_emplace(shape);
  Choice& p = at->second;
  const void* vector = product.dbias.defined() ? product.dbias.raw() : op.bias.raw();
  if (added) {
    describe(p, shape, shape.m, queue);
    // The choice depends on pointer alignment, and must not rely on more than the alignment of the next
    // call's pointers.
    p.point(aligned_like(vector, shape), aligned_like(product.hidden.raw(), shape), queue);
    p.point_scales(product.a_scales.raw(), product.b_scales.raw(), queue);
    choose(p, shape, product, products.handle.value, queue);
  }
  if (!p.found) return false;
  p.point(vector, product.hidden.raw(), queue);
  p.point_scales(product.a_scales.raw(), product.b_scales.raw(), queue);
  const cublasStatus_t status = run(p, p.algorithm, product, products.handle.value, queue);
  if (product.epilogue != Epilogue::none && status != CUBLAS_STATUS_SUCCESS) return p.found = false;
  check(status, "cublasLtMatmul", queue);
  return true;
}

}  // namespace cleave::kernels::gpu

namespace cleave::kernels {

std::string gpu_matmul_problem() { return gpu::loaded_cublaslt().problem; }

}  // namespace cleave::kernels
