// The cuBLASLt replacement reports each rule that a product breaks, offers algorithms that add in
// different orders, and rejects some products.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "tests/cuda_interpreter/device_memory.h"
#include "tests/cuda_interpreter/product_rules.h"

namespace interpreter {
namespace {

Layout layout(int64_t rows, int64_t columns, cudaDataType_t type = CUDA_R_16BF) {
  return {type, rows, columns, rows};
}

// 16 x 24 times 24 x 32.
Described product(cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT) {
  Described p{{}, layout(16, 24), layout(24, 32), layout(16, 32)};
  p.op.compute = CUBLAS_COMPUTE_32F, p.op.epilogue = epilogue;
  p.op.vector = reinterpret_cast<void*>(64), p.op.matrix = reinterpret_cast<void*>(64);
  p.op.matrix_stride = 16;
  return p;
}

struct Rule {
  const char* named;  // text in the report
  cublasStatus_t status;
  cublasLtEpilogue_t epilogue;
  std::function<void(Described&)> breaks;
};

const auto kNone = CUBLASLT_EPILOGUE_DEFAULT;
const auto kWrong = CUBLAS_STATUS_INVALID_VALUE, kUnknown = CUBLAS_STATUS_NOT_SUPPORTED;

TEST(InterpretedProducts, TakeWhatTheTableOfTypesHas) {
  for (const auto epilogue :
       {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX,
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADB})
    for (const auto operands : {CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F})
      for (const auto result : {operands, CUDA_R_32F}) {
        Described p = product(epilogue);
        p.a.type = p.b.type = operands, p.c.type = result;
        EXPECT_FALSE(problem_of(p)) << problem_of(p).text;
      }
}

TEST(InterpretedProducts, NameTheRuleThatIsBroken) {
  const Rule rules[] = {
      {"a second operand", kUnknown, kNone, [](Described& p) { p.b.type = CUDA_R_16F; }},
      {"a result", kUnknown, kNone, [](Described& p) { p.c.type = CUDA_R_16F; }},
      {"a product", kUnknown, kNone, [](Described& p) { p.op.compute = CUBLAS_COMPUTE_16F; }},
      {"an operand", kUnknown, kNone, [](Described& p) { p.op.compute = CUBLAS_COMPUTE_32F_FAST_TF32; }},
      {"a scale", kUnknown, kNone, [](Described& p) { p.op.scale = CUDA_R_16F; }},
      {"a bias", kUnknown, CUBLASLT_EPILOGUE_BIAS, [](Described& p) { p.op.vector_type = CUDA_R_32F; }},
      {"16 x 24 times", kWrong, kNone, [](Described& p) { p.b.rows = p.b.stride = 25; }},
      {"16 x 24 times", kWrong, kNone,
       [](Described& p) { p.op.a = CUBLAS_OP_T, std::swap(p.a.rows, p.a.columns), p.c.rows = 17; }},
      {"a leading dimension of 15", kWrong, kNone, [](Described& p) { p.a.stride = 15; }},
      {"epilogue", kUnknown, CUBLASLT_EPILOGUE_RELU, [](Described&) {}},
      {"without its vector", kWrong, CUBLASLT_EPILOGUE_BGRADB, [](Described& p) { p.op.vector = nullptr; }},
      {"without its matrix", kWrong, CUBLASLT_EPILOGUE_DGELU, [](Described& p) { p.op.matrix = nullptr; }},
      {"leading dimension of 20", kWrong, CUBLASLT_EPILOGUE_DGELU,
       [](Described& p) { p.op.matrix_stride = 20; }},
      {"leading dimension of 8", kWrong, CUBLASLT_EPILOGUE_GELU_AUX,
       [](Described& p) { p.op.matrix_stride = 8; }},
      {"aligned to 16", kWrong, CUBLASLT_EPILOGUE_GELU_AUX,
       [](Described& p) { p.op.matrix = reinterpret_cast<void*>(72); }}};
  for (const Rule& rule : rules) {
    Described p = product(rule.epilogue);
    ASSERT_FALSE(problem_of(p) && rule.epilogue != CUBLASLT_EPILOGUE_RELU) << rule.named;
    rule.breaks(p);
    const Refusal no = problem_of(p);
    EXPECT_EQ(no.status, rule.status) << rule.named;
    EXPECT_NE(no.text.find(rule.named), std::string::npos) << no.text;
  }
}

// As the program requests it: 16 x 32 of a row-major result, with both operands contiguous along
// the sums of 48.
Described small_product() {
  Described p{{}, layout(48, 32, CUDA_R_8F_E4M3), layout(48, 16, CUDA_R_8F_E5M2), layout(32, 16)};
  p.op.compute = CUBLAS_COMPUTE_32F, p.op.a = CUBLAS_OP_T;
  return p;
}

TEST(InterpretedProducts, HoldFp8ToItsOneLayoutAndItsTypes) {
  const auto rows = int32_t(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
  for (const auto result : {CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F})
    for (const int32_t scales : {int32_t(CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F), rows}) {
      Described p = small_product();
      p.c.type = result, p.op.a_scales = p.op.b_scales = scales;
      EXPECT_FALSE(problem_of(p)) << problem_of(p).text;
    }
  const std::pair<const char*, std::function<void(Described&)>> rules[] = {
      {"two operands", [](Described& p) { p.a.type = CUDA_R_8F_E5M2; }},
      {"a second operand", [](Described& p) { p.b.type = CUDA_R_16BF; }},
      {"a first operand that is as",
       [](Described& p) { p.op.a = CUBLAS_OP_N, std::swap(p.a.rows, p.a.columns); }},
      {"the type", [](Described& p) { p.op.compute = CUBLAS_COMPUTE_32F_FAST_TF32; }},
      {"the epilogue", [](Described& p) { p.op.epilogue = CUBLASLT_EPILOGUE_GELU_AUX; }},
      {"a bias", [](Described& p) { p.op.epilogue = CUBLASLT_EPILOGUE_BIAS, p.op.vector_type = CUDA_R_32F; }},
      {"scales in mode", [=](Described& p) { p.op.b_scales = rows; }},
      {"multiple of 16: 40", [](Described& p) { p.a.rows = p.a.stride = p.b.rows = p.b.stride = 40; }}};
  for (const auto& [named, breaks] : rules) {
    Described p = small_product();
    breaks(p);
    EXPECT_EQ(problem_of(p).status, kUnknown) << named;
    EXPECT_NE(problem_of(p).text.find(named), std::string::npos) << problem_of(p).text;
  }
  Described scaled = product();
  scaled.op.a_scale = scaled.op.vector;
  EXPECT_EQ(problem_of(scaled).status, kUnknown) << "16-bit operands have no scales";
}

// The properties at the request must hold at the use of the algorithm.
TEST(InterpretedProducts, NameABufferThatIsNotAsItWasPromised) {
  const auto at = [](uintptr_t place) { return reinterpret_cast<void*>(place); };
  Described p = product(CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  const Algorithm algorithm{kind_of(p), Order::halves, {64, 64, 64}, 64, 64, 1000, true, 1};
  EXPECT_FALSE(problem_of(p, algorithm, {at(64), at(128), at(192)}, {at(512), 1000}));
  const auto text = [&](Buffers buffers, Room room) { return problem_of(p, algorithm, buffers, room).text; };
  EXPECT_EQ(text({at(32), at(128), at(192)}, {at(512), 1000}).substr(0, 4), "a at");
  EXPECT_EQ(text({at(64), at(16), at(192)}, {at(512), 1000}).substr(0, 4), "b at");
  EXPECT_EQ(text({at(64), at(128), at(200)}, {at(512), 1000}).substr(0, 10), "the result");
  EXPECT_EQ(text({at(64), at(128), at(192)}, {at(512), 999}).substr(0, 11), "a workspace");
  EXPECT_EQ(text({at(64), at(128), at(192)}, {at(128), 1000}).substr(0, 11), "a workspace");
  p.op.vector = at(32);
  EXPECT_NE(text({at(64), at(128), at(192)}, {at(512), 1000}).find("vector"), std::string::npos);
  p.op.vector = at(64), p.op.matrix = at(32);
  EXPECT_NE(text({at(64), at(128), at(192)}, {at(512), 1000}).find("matrix"), std::string::npos);
  p.op.matrix = at(64), p.a.type = p.b.type = p.c.type = CUDA_R_16F;
  EXPECT_NE(text({at(64), at(128), at(192)}, {at(512), 1000}).find("another kind"), std::string::npos);
  EXPECT_FALSE(algorithm_of(cublasLtMatmulAlgo_t{})) << "words that the library did not make";
}

TEST(InterpretedProducts, HaveAlgorithmsButForATenthWhereThatIsAskedFor) {
  setenv("CUDA_INTERPRETER_REFUSED", "10", 1);
  Wishes wishes;
  wishes.workspace = 32 << 20;
  int none = 0, broken = 0, all = 0;
  for (int64_t rows = 1; rows <= 1000; ++rows) {
    Described p = product();
    p.a.rows = p.a.stride = p.c.rows = p.c.stride = rows;
    const std::vector<Algorithm> algorithms = offered(p, wishes);
    none += algorithms.empty(), all += int(algorithms.size());
    for (const Algorithm& a : algorithms) broken += !a.works;
    const std::vector<Algorithm> again = offered(p, wishes);
    ASSERT_TRUE(again.size() == algorithms.size() &&
                (again.empty() || again[0].order == algorithms[0].order));
    p.a.type = p.b.type = p.c.type = CUDA_R_32F;
    EXPECT_FALSE(offered(p, wishes).empty()) << "a plain product of fp32";
  }
  EXPECT_NEAR(none, 100, 40);
  EXPECT_NEAR(broken, all / 15, all / 40);
  wishes.workspace = 0, wishes.reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
  for (const Algorithm& a : offered(product(), wishes)) EXPECT_EQ(a.order, Order::ascending);
  unsetenv("CUDA_INTERPRETER_REFUSED");
  for (int64_t rows = 1; rows <= 100; ++rows) {
    Described p = product(CUBLASLT_EPILOGUE_BIAS);
    p.a.rows = p.a.stride = p.c.rows = p.c.stride = rows;
    EXPECT_FALSE(offered(p, wishes).empty());
  }
  setenv("CUDA_INTERPRETER_EPILOGUES", "0", 1);
  EXPECT_TRUE(offered(product(CUBLASLT_EPILOGUE_BIAS), wishes).empty());
  unsetenv("CUDA_INTERPRETER_EPILOGUES");
}

TEST(InterpretedProducts, AddInTheOrderOfTheirAlgorithm) {
  const auto put = [](const std::vector<float>& x) {
    void* at = device_memory().allocate(0, x.size() * sizeof(float));
    EXPECT_TRUE(device_memory().holds(at, x.size() * sizeof(float)));
    std::memcpy(at, x.data(), x.size() * sizeof(float));
    return static_cast<float*>(at);
  };
  // (1e8 + 1) - 1e8 + 1 is 1, (1e8 + 1) + (-1e8 + 1) is 0 and (1e8 - 1e8) + (1 + 1) is 2.
  float *a = put({1e8f, 1, -1e8f, 1}), *b = put({1, 1, 1, 1}), *c = put({7});
  MatrixProduct work{
      {}, layout(1, 4, CUDA_R_32F), layout(4, 1, CUDA_R_32F), layout(1, 1, CUDA_R_32F), a, b, c, 1,
      0,  Order::ascending};
  work.op.compute = CUBLAS_COMPUTE_32F;
  const std::pair<Order, float> wanted[] = {{Order::ascending, 1}, {Order::halves, 0}, {Order::even_odd, 2}};
  for (const auto& [order, want] : wanted) {
    work.order = order;
    work.run();
    EXPECT_EQ(*c, want) << int(order);
  }
  for (float* p : {a, b, c}) device_memory().free(p);
}

// 1.0078125 squared is 1.01568603515625, in bf16 1.015625: minus the bias 1.015625 it is 2^-14, or
// zero.
TEST(InterpretedProducts, RoundBeforeABiasWhereRowsAreUnaligned) {
  for (const auto& [stride, want] : {std::pair<int64_t, uint16_t>{8, 0x3880}, {9, 0x0000}}) {
    uint16_t* const memory = static_cast<uint16_t*>(device_memory().allocate(0, 64 * sizeof(uint16_t)));
    ASSERT_TRUE(device_memory().holds(memory, 64 * sizeof(uint16_t)));
    uint16_t *a = memory, *b = memory + 16, *c = memory + 32, *bias = memory + 48;
    *a = *b = 0x3f81, *bias = 0xbf82;
    MatrixProduct work{{}, layout(1, 1), layout(1, 1), layout(1, 1), a, b, c, 1, 0, Order::ascending};
    work.a.stride = work.b.stride = work.c.stride = stride;
    work.op.compute = CUBLAS_COMPUTE_32F, work.op.epilogue = CUBLASLT_EPILOGUE_BIAS, work.op.vector = bias;
    work.run();
    EXPECT_EQ(*c, want) << stride;
    device_memory().free(memory);
  }
}

}  // namespace
}  // namespace interpreter
