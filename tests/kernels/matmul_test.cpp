#include "kernels/matmul.h"

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <thread>

#include "device/team.h"
#include "kernels/cpu/bf16_products.h"
#include "kernels/cpu/bodies.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/register_loops.h"
#include "kernels/cpu/scratch.h"
#include "kernels/matmul_ways.h"
#include "tests/kernels/cases/matmul.h"
#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(Matmul);
KERNEL_SUITE(BiasGradient);

struct Product {
  MatmulCase size;
  DType c = DType::fp32, a = DType::fp32, b = DType::fp32;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
};

// Rounded fp32 sums of k products: k * 2^-24 times the sum of magnitudes, which is about k here.
void expect_product(const Product& p) {
  const auto [m, n, k] = p.size;
  Guarded a(p.a, p.transpose_a ? Shape{k, m} : Shape{m, k}, random_values(m * k, 1));
  Guarded b(p.b, p.transpose_b ? Shape{n, k} : Shape{k, n}, random_values(n * k, 2));
  Guarded c(p.c, {m, n}, random_values(m * n, 3));
  Guarded bias(p.a, {n}, random_values(n, 4));
  Values want = c.values();
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = p.accumulate ? want[size_t(i * n + j)] : p.bias ? bias.at(size_t(j)) : 0;
      for (int64_t l = 0; l < k; ++l)
        sum += a.at(size_t(p.transpose_a ? l * m + i : i * k + l)) *
               b.at(size_t(p.transpose_b ? j * k + l : l * n + j));
      want[size_t(i * n + j)] = sum;
    }
  Matmul op{.c = c,
            .a = a,
            .b = b,
            .bias = p.bias ? bias.tensor() : Tensor(),
            .transpose_a = p.transpose_a,
            .transpose_b = p.transpose_b,
            .accumulate = p.accumulate};
  TestStream stream;
  launch(op, stream);
  SCOPED_TRACE(fmt::format("{}x{}x{} {}{}{}{} {} {} {}", m, n, k, p.transpose_a ? "ta " : "",
                           p.transpose_b ? "tb " : "", p.accumulate ? "accumulate " : "",
                           p.bias ? "bias" : "", name_of(p.c), name_of(p.a), name_of(p.b)));
  expect_near(c, want, half_ulp(p.c) * 1.01, double(k + 4) * 0x1p-22, "c");
}

// Independent of the library's algorithm and of the measured product: a later stream and other buffers change
// nothing.
TEST_P(MatmulKernel, GivesAShapeTheSameBitsOnEveryStreamAndAtEveryAddress) {
  constexpr int64_t kRows = 192, kApart = 64;  // bytes that arenas and buckets align to, and more
  for (const auto& [columns, terms] : {std::pair<int64_t, int64_t>{96, 320}, {40, 1024}})
    for (const DType type : {DType::fp32, DType::bf16, DType::fp16})
      for (const bool transpose_b : {false, true}) {
        const Values values = random_values(kRows * terms, 1);
        Guarded a(type, {kRows, terms}, values),
            b(type, transpose_b ? Shape{columns, terms} : Shape{terms, columns},
              random_values(columns * terms, 2));
        Guarded room(type, {kApart + kRows * terms}), first(type, {kRows, columns}),
            again(type, {kRows, columns});
        const auto product = [&](const Tensor& c, const Tensor& left) {
          return Matmul{.c = c, .a = left, .b = b, .bias = {}, .transpose_b = transpose_b};
        };
        TestStream stream;
        stream.get().measure_choices();
        launch(product(first, a), stream);
        TestDevice* const device = TestDevice::current();
        std::unique_ptr<TestDevice> other = device ? std::make_unique<TestDevice>(GetParam()) : nullptr;
        if (other) TestDevice::current() = other.get();
        TestStream later;
        later.get().measure_choices();
        const Tensor elsewhere =
            Tensor(room).slice(Range{0, kRows * terms}.shifted(kApart)).view({kRows, terms});
        copy(elsewhere, a, later.get());
        launch(product(again, elsewhere), later);
        TestDevice::current() = device;
        EXPECT_EQ(again.values(), first.values())
            << columns << " x " << terms << " " << name_of(type) << (transpose_b ? " transposed" : "");
      }
}

// A tensor axis divides products into pieces of at least 64 rows.
TEST_P(MatmulKernel, GivesARowTheSameBitsIndependentOfOtherRows) {
  if (GetParam().is_cuda()) GTEST_SKIP() << "promised on CPUs only (docs/numerics.md)";
  constexpr int64_t kRows = 1024;
  struct Width {
    int64_t columns, terms;
  };
  for (const auto [columns, terms] : {Width{96, 768}, {8, 16}, {32, 16}, {13, 27}})
    for (const DType type : {DType::fp32, DType::bf16, DType::fp16})
      for (const bool transpose_b : {false, true}) {
        Guarded a(type, {kRows, terms}, random_values(kRows * terms, 1));
        Guarded b(type, transpose_b ? Shape{columns, terms} : Shape{terms, columns},
                  random_values(columns * terms, 2));
        Guarded bias(type, {columns}, random_values(columns, 3));
        Guarded whole(type, {kRows, columns}), pieces(type, {kRows, columns});
        TestStream stream;
        launch(Matmul{.c = whole, .a = a, .b = b, .bias = bias, .transpose_b = transpose_b}, stream);
        for (const Range r :
             {Range{0, 128}, Range{128, 256}, Range{256, 448}, Range{448, 512}, Range{512, 1024}})
          launch(Matmul{.c = pieces.tensor().rows(r),
                        .a = a.tensor().rows(r),
                        .b = b,
                        .bias = bias,
                        .transpose_b = transpose_b},
                 stream);
        EXPECT_EQ(pieces.values(), whole.values())
            << columns << " x " << terms << " " << name_of(type) << (transpose_b ? " transposed" : "");
      }
}

TEST_P(MatmulKernel, RoundsFp32OperandsToElevenBitsOnlyIfAllowed) {
  const int64_t n = 96;
  Guarded a(DType::fp32, {n, n}, random_values(n * n, 1)), b(DType::fp32, {n, n}, random_values(n * n, 2)),
      plain(DType::fp32, {n, n}), rounded(DType::fp32, {n, n}), bf16(DType::bf16, {n, n}),
      a16(DType::bf16, {n, n}, random_values(n * n, 1)), same(DType::bf16, {n, n});
  TestStream stream;
  launch(Matmul{.c = plain, .a = a, .b = b}, stream);
  launch(Matmul{.c = bf16, .a = a16, .b = a16}, stream);
  stream.get().allow_tf32();
  launch(Matmul{.c = rounded, .a = a, .b = b}, stream);
  launch(Matmul{.c = same, .a = a16, .b = a16}, stream);
  double largest = 0;
  for (size_t i = 0; i < size_t(n * n); ++i)
    largest = std::max(largest, std::fabs(rounded.at(i) - plain.at(i)));
  EXPECT_LT(largest, double(n) * 0x1p-10);
  EXPECT_EQ(largest > 0, GetParam().is_cuda());
  EXPECT_EQ(same.values(), bf16.values());
}

TEST_P(MatmulKernel, EqualsDoublePrecisionForEveryShapeAndTransposition) {
  for (const MatmulCase& size : kMatmulCases)
    for (int flags = 0; flags < 16; ++flags)
      if ((flags & 12) != 12)
        expect_product({.size = size,
                        .transpose_a = bool(flags & 1),
                        .transpose_b = bool(flags & 2),
                        .accumulate = bool(flags & 4),
                        .bias = bool(flags & 8)});
}

TEST_P(MatmulKernel, CrossesEveryBlockBoundary) {
  for (const MatmulCase& size : kBlockedCases)
    for (int flags = 0; flags < 4; ++flags) {
      const bool a = flags & 1, b = flags & 2;
      expect_product({.size = size, .transpose_a = a, .transpose_b = b, .accumulate = a, .bias = !a});
      expect_product({.size = size,
                      .c = DType::bf16,
                      .a = DType::bf16,
                      .b = DType::fp16,
                      .transpose_a = a,
                      .transpose_b = b,
                      .accumulate = !a,
                      .bias = a});
    }
}

// More sums than one part holds if the CPU multiplies bf16.
TEST_P(MatmulKernel, RoundsALarge16BitResultBlockByBlock) {
  for (const bool transposed : {false, true})
    for (const bool accumulate : {false, true})
      expect_product({.size = {2113, 1000, 17},
                      .c = accumulate ? DType::bf16 : DType::fp16,
                      .a = DType::bf16,
                      .b = DType::bf16,
                      .transpose_a = transposed,
                      .accumulate = accumulate});
}

TEST(Matmul, RejectsInvalidOperands) {
  Guarded a(DType::fp32, {3, 4}), b(DType::fp32, {4, 5}), c(DType::fp32, {3, 5}), bias(DType::fp32, {5});
  Guarded ints(DType::int32, {3, 4}), narrow(DType::fp32, {4});
  EXPECT_NO_THROW((Matmul{.c = c, .a = a, .b = b, .bias = bias}.check()));
  EXPECT_THROW((Matmul{.c = c, .a = b, .b = a}.check()), Error);
  EXPECT_THROW((Matmul{.c = c, .a = a, .b = b, .bias = {}, .transpose_a = true}.check()), Error);
  EXPECT_THROW((Matmul{.c = c, .a = ints, .b = b}.check()), Error);
  EXPECT_THROW((Matmul{.c = c, .a = a, .b = b, .bias = narrow}.check()), Error);
  EXPECT_THROW((Matmul{.c = c, .a = a, .b = b, .bias = bias, .accumulate = true}.check()), Error);
  const Tensor over(a.tensor().raw(), DType::fp32, {3, 3});
  EXPECT_THROW((Matmul{.c = over, .a = a, .b = Tensor(b.tensor().raw(), DType::fp32, {4, 3})}.check()),
               Error);
}

// Called directly, because a product uses oneDNN only if the CPU multiplies its type.
class OnednnGemm : public ::testing::TestWithParam<DType> {};

TEST_P(OnednnGemm, EqualsDoublePrecision) {
  const DType type = GetParam();
  if (!cpu::onednn_multiplies(type))
    GTEST_SKIP() << "oneDNN " << cpu::onednn_ability().version << " has no product of " << name_of(type)
                 << " with " << cpu::onednn_ability().instructions;
  const int64_t m = 33, n = 47, k = 65;
  for (int flags = 0; flags < 8; ++flags) {
    const bool ta = flags & 1, tb = flags & 2, accumulate = flags & 4;
    Guarded a(type, {m, k}, random_values(m * k, 1)), b(type, {k, n}, random_values(n * k, 2));
    Guarded c(DType::fp32, {m, n}, random_values(m * n, 3)), bias(DType::fp32, {n}, random_values(n, 4));
    Values want = c.values();
    for (int64_t i = 0; i < m * n; ++i) {
      double sum = accumulate ? want[size_t(i)] : bias.at(size_t(i % n));
      for (int64_t l = 0; l < k; ++l)
        sum += a.at(size_t(ta ? l * m + i / n : i / n * k + l)) *
               b.at(size_t(tb ? i % n * k + l : l * n + i % n));
      want[size_t(i)] = sum;
    }
    cpu::onednn_gemm({c.tensor().raw(), a.tensor().raw(), b.tensor().raw(),
                      accumulate ? nullptr : bias.tensor().as<float>(), DType::fp32, type, type, m, n, k,
                      ta ? m : k, ta, tb, accumulate});
    expect_near(c, want, 0x1p-24, double(k) * 0x1p-22, "c");
  }
}
INSTANTIATE_TEST_SUITE_P(Types, OnednnGemm, ::testing::Values(DType::fp32, DType::bf16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

// Its threads belong to another runtime, which by default would spin for milliseconds after each product.
TEST(OnednnTeam, SleepsWhileIdle) {
  const int before = team_threads();
  set_team_threads(2);
  const int64_t n = 128;
  Guarded a(DType::fp32, {n, n}), b(DType::fp32, {n, n}), c(DType::fp32, {n, n});
  const auto once = [&] {
    cpu::onednn_gemm({c.tensor().raw(), a.tensor().raw(), b.tensor().raw(), nullptr, DType::fp32, DType::fp32,
                      DType::fp32, n, n, n, n, false, false, false});
  };
  const auto cpu_time = [] {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
  };
  once();
  const double begin = cpu_time();
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(8));
    once();
  }
  EXPECT_LT(cpu_time() - begin, 0.06);  // of 0.24 s that the other thread may spin
  set_team_threads(before);
}

// ONEDNN_MAX_CPU_ISA makes a CPU look like one without the feature.
TEST(OnednnAbility, FollowsTheLimitInTheEnvironment) {
  const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string_view level = limit ? limit : "ALL";
  const bool within = level == "ALL" || level == "DEFAULT" || level.starts_with("AVX512_CORE_BF16") ||
                      level.starts_with("AVX512_CORE_AMX");
  EXPECT_EQ(cpu::onednn_ability().native_bf16, within && __builtin_cpu_supports("avx512bf16"));
  EXPECT_TRUE(!cpu::onednn_ability().native_bf16 || cpu::onednn_multiplies(DType::bf16));
}

TEST(MatmulWays, NameImplementationAndReasonPerType) {
  const std::vector<MatmulWay> ways = matmul_ways();
  ASSERT_EQ(ways.size(), 3u);
  const std::string own = fmt::format("own product with {}", cpu::isa() == cpu::Isa::v4 ? "AVX-512" : "AVX2");
  for (const MatmulWay& w : ways) {
    const cpu::Bf16Way bf16 = w.type == DType::bf16 ? cpu::bf16_products().way : cpu::Bf16Way::as_fp32;
    const std::string want = bf16 == cpu::Bf16Way::onednn  ? "oneDNN "
                             : bf16 == cpu::Bf16Way::dots  ? "own product with AVX512_BF16"
                             : bf16 == cpu::Bf16Way::tiles ? "own product with AMX"
                                                           : own;
    EXPECT_TRUE(w.way.starts_with(want)) << w.way;
    EXPECT_FALSE(w.why.empty());
  }
}

// Checks the assumptions about CPUs in bf16_products.h for this one. Instructions differ by at least a factor
// of two, and other load only slows a loop down, so the fastest of many attempts counts.
TEST(RegisterLoops, ConfirmTheChoiceForThisCpu) {
  const auto seconds = [](const cpu::RegisterLoop& loop) {
    timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    loop.run(20'000);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    return (double(end.tv_sec - begin.tv_sec) + 1e-9 * double(end.tv_nsec - begin.tv_nsec)) / loop.flops;
  };
  const bool fast = cpu::bf16_products().way != cpu::Bf16Way::as_fp32;
  double fp32 = 1e30, bf16 = 1e30;
  for (int attempt = 0; attempt < 2000; ++attempt) {
    fp32 = std::min(fp32, seconds(cpu::fp32_loop())), bf16 = std::min(bf16, seconds(cpu::bf16_loop()));
    if (attempt >= 20 && (fp32 > 1.25 * bf16) == fast) return;
  }
  ADD_FAILURE() << "bf16 has " << fp32 / bf16 << " times the FLOPs of fp32";
}

// A body with packed bf16: by the CPU's instruction, if it has one, or by its model.
struct PackedBody {
  const char* name;
  void (*gemm)(const cpu::GemmArgs&);
  bool (*runs)();
};
void PrintTo(const PackedBody& body, std::ostream* out) { *out << body.name; }

class PackedProduct : public ::testing::TestWithParam<PackedBody> {
 protected:
  void SetUp() override {
    if (cpu::isa() != cpu::Isa::v4) GTEST_SKIP() << "its operands are packed with AVX-512";
    if (!GetParam().runs()) GTEST_SKIP() << "the CPU has no " << GetParam().name;
  }

  // op(a) op(b) with a's rows of `m`, called like launch().
  static void run(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& bias, const Product& p) {
    const auto [m, n, k] = p.size;
    const cpu::Scratch scratch(cpu::gemm_scratch(m, k, team_threads()) * 4);
    GetParam().gemm({.c = c.as<float>(),
                     .rounded = {},
                     .a = {a.raw(), DType::bf16},
                     .b = {b.raw(), DType::bf16},
                     .bias = p.bias ? bias.as<float>() : nullptr,
                     .c_stride = n,
                     .rounded_stride = 0,
                     .a_stride = p.transpose_a ? m : k,
                     .b_stride = p.transpose_b ? k : n,
                     .m = m,
                     .n = n,
                     .k = k,
                     .transpose_a = p.transpose_a,
                     .transpose_b = p.transpose_b,
                     .accumulate = p.accumulate,
                     .scratch = scratch.floats()});
  }
};
class TileProduct : public PackedProduct {};

bool anywhere() { return true; }
bool has_dots() { return __builtin_cpu_supports("avx512bf16"); }
constexpr PackedBody kTiles{"AMX", cpu::v4::gemm_tiles, cpu::has_tiles},
    kTilesByModel{"ModelOfAMX", cpu::v4::gemm_tiles_by_model, anywhere},
    kDots{"AVX512_BF16", cpu::v4::gemm_dots, has_dots},
    kDotsByModel{"ModelOfAVX512_BF16", cpu::v4::gemm_dots_by_model, anywhere};
std::string name_of_body(const ::testing::TestParamInfo<PackedBody>& body) { return body.param.name; }
INSTANTIATE_TEST_SUITE_P(By, PackedProduct, ::testing::Values(kTiles, kTilesByModel, kDots, kDotsByModel),
                         name_of_body);
INSTANTIATE_TEST_SUITE_P(By, TileProduct, ::testing::Values(kTiles, kTilesByModel), name_of_body);

TEST_P(PackedProduct, EqualsDoublePrecisionForEveryShapeAndTransposition) {
  std::vector<MatmulCase> sizes(std::begin(kMatmulCases), std::end(kMatmulCases));
  sizes.insert(sizes.end(), {{32, 32, 32}, {33, 31, 33}, {64, 96, 544}, {300, 270, 40}});
  for (const MatmulCase& size : sizes)
    for (int flags = 0; flags < 8; ++flags) {
      const Product p{.size = size,
                      .transpose_a = bool(flags & 1),
                      .transpose_b = bool(flags & 2),
                      .accumulate = bool(flags & 4),
                      .bias = !(flags & 4)};
      const auto [m, n, k] = size;
      if (m == 0 || n == 0 || k == 0) continue;
      Guarded a(DType::bf16, p.transpose_a ? Shape{k, m} : Shape{m, k}, random_values(m * k, 1));
      Guarded b(DType::bf16, p.transpose_b ? Shape{n, k} : Shape{k, n}, random_values(n * k, 2));
      Guarded c(DType::fp32, {m, n}, random_values(m * n, 3)), bias(DType::fp32, {n}, random_values(n, 4));
      Values want = c.values();
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = p.accumulate ? want[size_t(i * n + j)] : bias.at(size_t(j));
          for (int64_t l = 0; l < k; ++l)
            sum += a.at(size_t(p.transpose_a ? l * m + i : i * k + l)) *
                   b.at(size_t(p.transpose_b ? j * k + l : l * n + j));
          want[size_t(i * n + j)] = sum;
        }
      run(c, a, b, bias, p);
      SCOPED_TRACE(fmt::format("{}x{}x{} flags {}", m, n, k, flags));
      expect_near(c, want, half_ulp(DType::fp32), double(k + 4) * 0x1p-22, "c");
    }
}

// Order of the instruction in the SDM: even and odd terms separately, from zero; their sum; then c. 2^24 + 1
// is 2^24 in fp32, so every other order has another result.
TEST_P(TileProduct, SumsInTheOrderOfTheInstruction) {
  constexpr float kLarge = 0x1p24f;
  Guarded ones(DType::bf16, {1, 32}, Values(32, 1.0)), c(DType::fp32, {1, 1}, Values(1, 1.0));
  const auto sum = [&](Values terms, float from) {
    terms.resize(32);
    Guarded b(DType::bf16, {32, 1}, terms);
    c.tensor().as<float>()[0] = from;
    run(c, ones, b, {}, {.size = {1, 1, 32}, .accumulate = true});
    return c.at(0);
  };
  EXPECT_EQ(sum({kLarge, 0, 1, 0, 1, 0, 1}, 0), kLarge);         // even terms, one after the other
  EXPECT_EQ(sum({kLarge, 1, 0, 1, 0, 1, 0, 1}, 0), kLarge + 4);  // odd terms, separately
  EXPECT_EQ(sum({1, 0, 1}, kLarge), kLarge + 2);                 // c last
  EXPECT_EQ(sum({kLarge, 1}, -kLarge), 0);                       // after the sum of the two
  EXPECT_EQ(sum({0x1p-130f}, 0), 0);                             // subnormal terms are zero,
  EXPECT_EQ(sum({}, 0x1p-130f), 0);                              // subnormal c
  EXPECT_EQ(sum({0x1p-126f}, -0x1.8p-126f), 0);                  // and subnormal sums
  EXPECT_TRUE(std::isnan(
      sum({std::numeric_limits<double>::infinity(), -1, -std::numeric_limits<double>::infinity()}, 0)));
}

TEST_P(TileProduct, IsValidatedBeforeUse) {
  EXPECT_TRUE(cpu::has_the_models_bits(GetParam().gemm));
  EXPECT_FALSE(cpu::has_the_models_bits(cpu::v4::gemm));  // which sums in another order
}

TEST_P(PackedProduct, GivesARowTheSameBitsIndependentOfOtherRows) {
  const int64_t m = 96, n = 70, k = 600;
  Guarded a(DType::bf16, {m, k}, random_values(m * k, 1)), b(DType::bf16, {k, n}, random_values(n * k, 2)),
      c(DType::fp32, {m, n}, random_values(m * n, 3)), pieces(DType::fp32, {m, n}, random_values(m * n, 3));
  run(c, a, b, {}, {.size = {m, n, k}, .accumulate = true});
  for (const Range r : {Range{0, 5}, Range{5, 38}, Range{38, 96}})
    run(pieces.tensor().rows(r), a.tensor().rows(r), b, {}, {.size = {r.size(), n, k}, .accumulate = true});
  EXPECT_EQ(pieces.values(), c.values());
}

TEST_P(MatmulKernel, SupportsEveryMixOfStorageTypes) {
  for (DType c : kTrainingTypes)
    for (DType a : kTrainingTypes)
      for (DType b : kTrainingTypes)
        for (bool accumulate : {false, true})
          expect_product({.size = {33, 40, 65},
                          .c = c,
                          .a = a,
                          .b = b,
                          .transpose_b = true,
                          .accumulate = accumulate,
                          .bias = !accumulate});
}

TEST_P(BiasGradientKernel, SumsColumns) {
  for (DType type : kTrainingTypes)
    for (const auto& [rows, width] : {std::pair{1, 1}, {37, 300}, {8, 17}, {129, 64}, {0, 5}, {3, 0}})
      for (bool accumulate : {false, true}) {
        Guarded dy(type, {rows, width}, random_values(rows * width, 5));
        Guarded db(DType::fp32, {width}, random_values(width, 6));
        Values want = accumulate ? db.values() : Values(size_t(width), 0.0);
        for (int64_t i = 0; i < rows * width; ++i) want[size_t(i % width)] += dy.at(size_t(i));
        TestStream stream;
        launch(BiasGradient{.db = db, .dy = dy, .accumulate = accumulate}, stream);
        expect_near(db, want, 0x1p-23, double(rows + 1) * 0x1p-22, "db");
      }
}

}  // namespace
}  // namespace cleave::kernels
