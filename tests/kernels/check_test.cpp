// check() rejects operands outside the contracts.
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "kernels/update.h"
#include "tests/kernels/guarded.h"
#include "tests/scratch.h"

namespace cleave::kernels {
namespace {

template <class Op>
std::string refusal(const Op& op) {
  return error_text(Exit::internal, [&] { op.check(); });
}

class Check : public testing::Test {
 protected:
  Guarded a_{DType::fp32, {4, 6}}, b_{DType::fp32, {4, 6}}, half_{DType::bf16, {4, 6}},
      ints_{DType::int32, {4}};
  Guarded rows_{DType::fp32, {4}}, width_{DType::fp32, {6}}, one_{DType::fp64, {1}}, small_{DType::fp32, {3}};
};

TEST_F(Check, NamesOpOperandExpectedAndActualValue) {
  const std::string message = refusal(Add{.y = a_, .a = b_, .b = small_});
  for (const char* part : {"Add", "b", "24", "[3]"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_NE(refusal(Add{.y = a_, .a = Tensor(), .b = b_}), "");
}

TEST_F(Check, RejectsElementwiseOpsWithDifferentTypesOrSizes) {
  EXPECT_NE(refusal(ActivationForward{.y = half_, .x = a_}), "");
  EXPECT_NE(refusal(ActivationBackward{.dx = a_, .dy = small_, .x = b_}), "");
  EXPECT_NE(refusal(ActivationForward{.y = ints_, .x = ints_}), "");
  EXPECT_NE(refusal(Dropout{.y = a_, .x = b_, .p = 1.5f, .philox = {}}), "");
  EXPECT_NE(refusal(Dropout{.y = a_, .x = b_, .p = 0.5f, .philox = {}, .offset = -1}), "");
  EXPECT_NE(refusal(Cast{.y = ints_, .x = rows_}), "");
  EXPECT_NE(refusal(Axpy{.y = a_, .x = small_}), "");
  EXPECT_NE(refusal(Scale{.y = a_, .x = small_}), "");
  EXPECT_NE(refusal(SoftCap{.y = a_, .x = b_, .cap = 0}).find("above 0"), std::string::npos);
  EXPECT_NE(refusal(SoftCap{.y = half_, .x = a_, .cap = 2}), "");
  EXPECT_NE(refusal(CopyRuns{.y = a_, .x = small_, .width = 4}), "");
  EXPECT_NE(refusal(CopyRuns{.y = a_, .x = a_}), "");
  EXPECT_NE(refusal(SumSquares{.out = rows_, .x = a_}), "");
  EXPECT_NE(refusal(Sum{.out = one_, .x = half_}), "");
  EXPECT_NE(refusal(RandomFill{.y = half_, .philox = {}}), "");
  EXPECT_EQ(refusal(Cast{.y = half_, .x = a_}), "");
  EXPECT_EQ(refusal(SumSquares{.out = one_, .x = half_}), "");
}

TEST_F(Check, RejectsLayerNormsWithDifferentWidths) {
  EXPECT_EQ(refusal(LayerNormForward{
                .y = a_, .mean = rows_, .rstd = rows_, .x = b_, .weight = width_, .bias = width_}),
            "");
  EXPECT_NE(refusal(LayerNormForward{
                .y = a_, .mean = rows_, .rstd = rows_, .x = b_, .weight = rows_, .bias = width_}),
            "");
  EXPECT_NE(refusal(LayerNormForward{
                .y = a_, .mean = small_, .rstd = rows_, .x = b_, .weight = width_, .bias = width_}),
            "");
  EXPECT_NE(
      refusal(LayerNormForward{
          .y = a_, .mean = rows_, .rstd = rows_, .x = b_, .residual = a_, .weight = width_, .bias = width_}),
      "");
  EXPECT_NE(refusal(LayerNormBackward{.dx = a_,
                                      .dweight = width_,
                                      .dbias = small_,
                                      .dy = b_,
                                      .x = b_,
                                      .mean = rows_,
                                      .rstd = rows_,
                                      .weight = width_}),
            "");
}

TEST_F(Check, RejectsRmsNormsWithDifferentWidths) {
  const RmsNormForward forward{.y = a_, .rstd = rows_, .x = b_, .weight = width_};
  EXPECT_EQ(refusal(forward), "");
  RmsNormForward bad = forward;
  bad.weight = rows_;
  EXPECT_NE(refusal(bad), "");
  bad = forward, bad.rstd = small_;
  EXPECT_NE(refusal(bad), "");
  bad = forward, bad.residual = a_;
  EXPECT_NE(refusal(bad).find("sum"), std::string::npos) << "a residual needs memory for the sum";
  const RmsNormBackward backward{
      .dx = a_, .dweight = width_, .dy = b_, .x = b_, .rstd = rows_, .weight = width_};
  EXPECT_EQ(refusal(backward), "");
  RmsNormBackward other = backward;
  other.dweight = small_;
  EXPECT_NE(refusal(other), "");
  other = backward, other.dy = half_;
  EXPECT_NE(refusal(other), "");
}

TEST_F(Check, RejectsGatedUnitsWithoutTwoInputHalves) {
  Guarded wide(DType::fp32, {4, 12}), odd(DType::fp32, {4, 11});
  EXPECT_EQ(refusal(GatedForward{.y = a_, .x = wide}), "");
  EXPECT_NE(refusal(GatedForward{.y = a_, .x = odd}), "");
  EXPECT_NE(refusal(GatedForward{.y = half_, .x = wide}), "");
  EXPECT_NE(refusal(GatedForward{.y = wide.tensor().rows({0, 2}).view({4, 6}), .x = wide}).find("overlap"),
            std::string::npos);
  EXPECT_EQ(refusal(GatedBackward{.dx = wide, .dy = a_, .x = wide}), "");
  EXPECT_NE(refusal(GatedBackward{.dx = odd, .dy = a_, .x = wide}), "");
}

TEST_F(Check, RejectsRotationsWithoutATableEntryPerPosition) {
  Guarded qkv(DType::fp32, {4, 16}), cos(DType::fp32, {4, 2}), sin(DType::fp32, {4, 2});
  const Rotary good{.qkv = qkv, .cos = cos, .sin = sin, .seq = 4, .heads = 2, .kv_heads = 1, .head_dim = 4};
  EXPECT_EQ(refusal(good), "");
  Rotary bad = good;
  bad.first_position = 1;
  EXPECT_NE(refusal(bad).find("position 4"), std::string::npos);
  bad = good, bad.head_dim = 3;
  EXPECT_NE(refusal(bad).find("even"), std::string::npos);
  bad = good, bad.kv_heads = 2;
  EXPECT_NE(refusal(bad), "");
  bad = good, bad.sin = rows_;
  EXPECT_NE(refusal(bad), "");
  bad = good, bad.seq = 0;
  EXPECT_NE(refusal(bad), "");
  Guarded positions(DType::int32, {1, 4}), few(DType::int32, {1, 3}), numbers(DType::fp32, {1, 4});
  bad = good, bad.documents = positions;
  EXPECT_EQ(refusal(bad), "");
  bad.documents = few;
  EXPECT_NE(refusal(bad).find("documents"), std::string::npos);
  bad.documents = numbers;
  EXPECT_NE(refusal(bad).find("documents"), std::string::npos);
}

TEST_F(Check, RejectsPositionsThatDoNotFitTheDocuments) {
  Guarded documents(DType::int32, {2, 6}), three(DType::int32, {2, 3}), other(DType::int32, {3, 3}),
      numbers(DType::fp32, {2, 3});
  const DocumentPositions good{.positions = three, .documents = documents, .first = 3};
  EXPECT_EQ(refusal(good), "");
  DocumentPositions bad = good;
  bad.first = 4;
  EXPECT_NE(refusal(bad).find("positions [4, 7) of sequences of 6"), std::string::npos);
  bad = good, bad.first = -1;
  EXPECT_NE(refusal(bad), "");
  bad = good, bad.positions = other;
  EXPECT_NE(refusal(bad).find("positions"), std::string::npos);
  bad = good, bad.positions = numbers;
  EXPECT_NE(refusal(bad).find("positions"), std::string::npos);
}

TEST_F(Check, RejectsEmbeddingsAndLossesThatDoNotFit) {
  EXPECT_EQ(refusal(EmbeddingForward{.y = a_, .tokens = ints_, .wte = b_}), "");
  EXPECT_NE(refusal(EmbeddingForward{.y = a_, .tokens = rows_, .wte = b_}), "");
  EXPECT_NE(refusal(EmbeddingForward{
                .y = a_, .tokens = ints_, .wte = b_, .wpe = b_, .seq = 4, .first_position = 1}),
            "");
  EXPECT_EQ(refusal(EmbeddingForward{.y = a_, .tokens = ints_, .wte = b_, .wpe = b_, .positions = ints_}),
            "");
  EXPECT_NE(refusal(EmbeddingForward{.y = a_, .tokens = ints_, .wte = b_, .wpe = b_, .positions = rows_}),
            "");
  EXPECT_NE(refusal(EmbeddingBackward{.dwte = small_, .dy = a_, .tokens = ints_}), "");
  EXPECT_EQ(refusal(CrossEntropy{.logits = a_, .losses = rows_, .targets = ints_, .vocab = 6}), "");
  EXPECT_NE(refusal(CrossEntropy{.logits = a_, .losses = rows_, .targets = ints_, .vocab = 7}), "");
  EXPECT_NE(
      refusal(CrossEntropy{.logits = a_, .losses = rows_, .dlogits = small_, .targets = ints_, .vocab = 6}),
      "");
  EXPECT_NE(refusal(CrossEntropy{.logits = a_, .losses = small_, .targets = ints_, .vocab = 6}), "");
  EXPECT_NE(refusal(CrossEntropy{.logits = a_, .losses = rows_, .targets = ints_, .vocab = 6, .hits = ints_}),
            "");
}

TEST_F(Check, RejectsAttentionWithInvalidHeads) {
  Guarded qkv(DType::fp32, {4, 12}), y(DType::fp32, {4, 4}), lse(DType::fp32, {8});
  const AttentionForward good{
      .y = y, .lse = lse, .qkv = qkv, .batch = 1, .seq = 4, .heads = 2, .kv_heads = 2, .head_dim = 2};
  EXPECT_EQ(refusal(good), "");
  AttentionForward bad = good;
  bad.kv_heads = 3;
  EXPECT_NE(refusal(bad), "");
  bad = good, bad.seq = 5;
  EXPECT_NE(refusal(bad), "");
  bad = good, bad.lse = y;
  EXPECT_NE(refusal(bad), "");
  bad = good, bad.mask.window = -1;
  EXPECT_NE(refusal(bad).find("window"), std::string::npos);
  Guarded positions(DType::int32, {1, 4}), few(DType::int32, {1, 3}), numbers(DType::fp32, {1, 4});
  bad = good, bad.mask.documents = positions;
  EXPECT_EQ(refusal(bad), "");
  bad = good, bad.mask.documents = few;
  EXPECT_NE(refusal(bad).find("documents"), std::string::npos);
  bad = good, bad.mask.documents = numbers;
  EXPECT_NE(refusal(bad).find("documents"), std::string::npos);
  Guarded dqkv(DType::fp32, {4, 12}), dy(DType::fp32, {4, 4});
  EXPECT_EQ(refusal(AttentionBackward{dqkv, dy, good}), "");
  EXPECT_NE(refusal(AttentionBackward{qkv, dy, good}).find("qkv"), std::string::npos);
  EXPECT_NE(refusal(AttentionBackward{dqkv, qkv, good}).find("dy"), std::string::npos);
  bad = good, bad.lse = y;
  EXPECT_NE(refusal(AttentionBackward{dqkv, dy, bad}).find("AttentionBackward: lse"), std::string::npos);
}

TEST_F(Check, RejectsUpdatesWithDifferentSizes) {
  EXPECT_EQ(refusal(Adam{.param = a_, .m = b_, .v = b_, .grad = half_}), "");
  EXPECT_NE(refusal(Adam{.param = half_, .m = b_, .v = b_, .grad = a_}), "");
  EXPECT_NE(refusal(Adam{.param = a_, .m = b_, .v = b_, .grad = a_, .step = 0}), "");
  EXPECT_NE(refusal(Adam{.param = a_, .m = b_, .v = b_, .copy = small_, .grad = a_}), "");
  EXPECT_EQ(refusal(Sgd{.param = a_, .grad = half_}), "");
  EXPECT_NE(refusal(Sgd{.param = a_, .grad = half_, .momentum = 0.9f}), "");
  EXPECT_EQ(refusal(Lion{.param = a_, .m = b_, .grad = half_}), "");
  EXPECT_NE(refusal(Lion{.param = a_, .m = half_, .grad = half_}), "");
  EXPECT_EQ(refusal(Adagrad{.param = a_, .sum = b_, .grad = half_}), "");
  EXPECT_NE(refusal(Adagrad{.param = a_, .sum = small_, .grad = half_}), "");
  EXPECT_NE(refusal(LambMoments{.m = b_, .v = b_, .squares = a_, .param = a_, .grad = half_}).find("squares"),
            std::string::npos);
  EXPECT_EQ(refusal(LambStep{.param = a_, .m = b_, .v = b_}), "");
  EXPECT_NE(refusal(LambStep{.param = a_, .m = b_, .v = small_}), "");
}

}  // namespace
}  // namespace cleave::kernels
