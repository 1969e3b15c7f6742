#include "kernels/checksum.h"

#include <cstring>

#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(Checksum);

int64_t sum_in(const Guarded& out) {
  int64_t sum = 0;
  std::memcpy(&sum, out.bits().data(), sizeof(sum));
  return sum;
}

int64_t checksum(const Guarded& x, int64_t first = 0) {
  Guarded out(DType::int64, {1}, {0});
  TestStream stream;
  launch(Checksum{.out = out, .x = x, .first = first}, stream);
  const int64_t sum = sum_in(out);
  EXPECT_TRUE(out.intact());
  return sum;
}

// The formula again, on the bits of a tensor, in words of up to 32 bits.
template <class Word>
int64_t formula(const Guarded& x, int64_t first) {
  const std::vector<std::byte> bytes = x.bits();
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes.size() / sizeof(Word); ++i) {
    Word word;
    std::memcpy(&word, bytes.data() + i * sizeof(Word), sizeof(Word));
    const uint64_t mixed = (uint64_t(word) + (uint64_t(first) + i + 1) * 0x9e3779b9u) % (uint64_t{1} << 32);
    const uint64_t product = (mixed ^ mixed >> 16) * 0x85ebca6bu % (uint64_t{1} << 32);
    sum += product ^ product >> 13;
  }
  return int64_t(sum);
}

TEST_P(ChecksumKernel, FollowsTheFormulaForEveryWidthAndSize) {
  for (int64_t numel : {0, 1, 13, 1000, 70001}) {
    const Values v = random_values(numel, 1);
    const Guarded half(DType::bf16, {numel}, v), single(DType::fp32, {numel}, v),
        wide(DType::fp64, {numel}, v);
    EXPECT_EQ(checksum(half, 5), formula<uint16_t>(half, 5)) << numel;
    EXPECT_EQ(checksum(single, 0), formula<uint32_t>(single, 0)) << numel;
    EXPECT_EQ(checksum(wide, 3), formula<uint32_t>(wide, 6)) << numel;
  }
}

TEST_P(ChecksumKernel, ChangesWithEveryBitAndWithTheOrder) {
  const Values v = random_values(257, 2);
  const int64_t sum = checksum(Guarded(DType::fp32, {257}, v));
  Values negative = v, swapped = v;
  negative[100] = -negative[100];
  std::swap(swapped[3], swapped[200]);
  EXPECT_NE(checksum(Guarded(DType::fp32, {257}, negative)), sum);
  EXPECT_NE(checksum(Guarded(DType::fp32, {257}, swapped)), sum);
  Values next = v;
  next[256] = double(std::nextafter(float(v[256]), 10.0f));
  EXPECT_NE(checksum(Guarded(DType::fp32, {257}, next)), sum);
}

TEST_P(ChecksumKernel, AddsPiecesToTheSumOfTheWhole) {
  const Values v = random_values(1000, 3);
  const Guarded x(DType::bf16, {1000}, v);
  Guarded out(DType::int64, {1}, {0});
  TestStream stream;
  const Tensor whole = x;
  launch(Checksum{.out = out, .x = whole.slice({0, 333})}, stream);
  launch(Checksum{.out = out, .x = whole.slice({333, 1000}), .first = 333}, stream);
  EXPECT_EQ(sum_in(out), checksum(x));
}

TEST(Checksum, RejectsAnotherResult) {
  Guarded x(DType::fp32, {4}), out(DType::fp32, {1}), two(DType::int64, {2});
  EXPECT_THROW((Checksum{.out = out, .x = x}.check()), Error);
  EXPECT_THROW((Checksum{.out = two, .x = x}.check()), Error);
}

}  // namespace
}  // namespace cleave::kernels
