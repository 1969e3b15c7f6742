// Output bits of every kernel, compared between runs of this program with other instruction sets and thread
// counts.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <map>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cpu/bf16_products.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "kernels/update.h"
#include "tests/kernels/cases/attention.h"
#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

class Digest {
 public:
  template <class Op>
  void run(const char* name, const Op& op, std::initializer_list<const Guarded*> outputs) {
    launch(op, stream_);
    uint64_t hash = 0;
    for (const Guarded* g : outputs)
      for (std::byte b : g->bits()) hash = (hash ^ uint64_t(b)) * 0x100000001b3ull;
    std::printf("digest %s/%d %016llx\n", name, count_++, static_cast<unsigned long long>(hash));
  }

 private:
  Stream stream_;
  int count_ = 0;
};

Guarded some(DType type, Shape shape, uint64_t seed, double scale = 1) {
  return Guarded(type, shape, random_values(shape.numel(), seed, scale));
}

void elementwise(Digest& d, DType type) {
  const int64_t n = 40009;
  Guarded x = some(type, {n}, 1, 3), y = some(type, {n}, 2), dx(type, {n}), out(DType::fp64, {1});
  for (Activation kind : {Activation::gelu_tanh, Activation::gelu_erf, Activation::relu, Activation::silu}) {
    d.run("ActivationForward", ActivationForward{.y = dx, .x = x, .kind = kind}, {&dx});
    d.run("ActivationBackward", ActivationBackward{.dx = dx, .dy = y, .x = x, .kind = kind}, {&dx});
  }
  d.run("Add", Add{.y = dx, .a = x, .b = y}, {&dx});
  d.run("Dropout", Dropout{.y = dx, .x = x, .p = 0.2f, .philox = {3, 4}, .offset = 17}, {&dx});
  d.run("Axpy", Axpy{.y = dx, .x = x, .alpha = 0.7f}, {&dx});
  d.run("SumSquares", SumSquares{.out = out, .x = x}, {&out});
  Guarded p = some(DType::fp32, {n}, 5), m = some(DType::fp32, {n}, 6),
          v(DType::fp32, {n}, Values(size_t(n), 0.25));
  d.run("Adam", Adam{.param = p, .m = m, .v = v, .copy = dx, .grad = x, .weight_decay = 0.1f},
        {&p, &m, &v, &dx});
  d.run("Sgd", Sgd{.param = p, .buffer = m, .copy = dx, .grad = x, .momentum = 0.9f, .first = false},
        {&p, &m, &dx});
  d.run("Lion", Lion{.param = p, .m = m, .copy = dx, .grad = x, .weight_decay = 0.1f}, {&p, &m, &dx});
  d.run("Adagrad", Adagrad{.param = p, .sum = v, .copy = dx, .grad = x, .weight_decay = 0.1f}, {&p, &v, &dx});
  Guarded squares(DType::fp64, {2});
  d.run("LambMoments", LambMoments{.m = m, .v = v, .squares = squares, .param = p, .grad = x},
        {&m, &v, &squares});
  d.run("LambStep", LambStep{.param = p, .copy = dx, .m = m, .v = v, .weight_decay = 0.1f}, {&p, &dx});
  d.run("Sum", Sum{.out = out, .x = p}, {&out});
  d.run("RandomFill", RandomFill{.y = p, .philox = {1, 2}, .first = 3}, {&p});
}

void rows(Digest& d, DType type) {
  const int64_t rows = 200, width = 131, vocab = 57;
  Guarded x = some(type, {rows, width}, 1), res = some(type, {rows, width}, 2), y(type, {rows, width}),
          sum(type, {rows, width});
  Guarded w = some(type, {width}, 3), b = some(type, {width}, 4), mean(DType::fp32, {rows}),
          rstd(DType::fp32, {rows});
  Guarded dw(DType::fp32, {width}), db(DType::fp32, {width});
  d.run("LayerNormForward",
        LayerNormForward{
            .y = y, .sum = sum, .mean = mean, .rstd = rstd, .x = x, .residual = res, .weight = w, .bias = b},
        {&y, &sum, &mean, &rstd});
  d.run("LayerNormBackward",
        LayerNormBackward{.dx = y,
                          .dweight = dw,
                          .dbias = db,
                          .dy = res,
                          .x = x,
                          .mean = mean,
                          .rstd = rstd,
                          .weight = w,
                          .dresidual = x},
        {&y, &dw, &db});
  d.run("RmsNormForward",
        RmsNormForward{.y = y, .sum = sum, .rstd = rstd, .x = x, .residual = res, .weight = w},
        {&y, &sum, &rstd});
  d.run("RmsNormBackward",
        RmsNormBackward{.dx = y, .dweight = dw, .dy = res, .x = x, .rstd = rstd, .weight = w, .dresidual = x},
        {&y, &dw});
  Guarded wide = some(type, {rows, 2 * width}, 7, 4), dwide(type, {rows, 2 * width});
  for (Activation kind : {Activation::silu, Activation::gelu_tanh}) {
    d.run("GatedForward", GatedForward{.y = y, .x = wide, .kind = kind}, {&y});
    d.run("GatedBackward", GatedBackward{.dx = dwide, .dy = x, .x = wide, .kind = kind}, {&dwide});
  }
  d.run("BiasGradient", BiasGradient{.db = db, .dy = x}, {&db});
  Guarded tokens(DType::int32, {rows}), losses(DType::fp32, {rows});
  for (size_t i = 0; i < size_t(rows); ++i) tokens.put(i, double(i * i % size_t(vocab)));
  Guarded wte = some(type, {vocab, width}, 5), wpe = some(type, {50, width}, 6);
  d.run("EmbeddingForward", EmbeddingForward{.y = y, .tokens = tokens, .wte = wte, .wpe = wpe, .seq = 50},
        {&y});
  d.run("EmbeddingBackward",
        EmbeddingBackward{.dwte = wte, .dwpe = wpe, .dy = x, .tokens = tokens, .seq = 50}, {&wte, &wpe});
  d.run("CrossEntropy",
        CrossEntropy{.logits = x, .losses = losses, .targets = tokens, .vocab = 130, .scale = 2},
        {&x, &losses});
  d.run("SoftCap", SoftCap{.y = x, .x = res, .cap = 1.5f}, {&x});
  d.run("CrossEntropyOfCapped",
        CrossEntropy{.logits = x, .losses = losses, .targets = tokens, .vocab = 130, .scale = 2, .cap = 1.5f},
        {&x, &losses});
  d.run("Scale", Scale{.y = x, .x = res, .factor = 1.7f}, {&x});
}

// Returns true if products of the type add two terms at a time.
bool by_pairs(DType type) {
  const cpu::Bf16Way way = cpu::bf16_products().way;
  return type == DType::bf16 && (way == cpu::Bf16Way::dots || way == cpu::Bf16Way::tiles);
}

void products(Digest& d, DType type) {
  const int64_t m = 253, n = 301, k = 399;
  for (bool ta : {false, true})
    for (bool tb : {false, true}) {
      Guarded a = some(type, ta ? Shape{k, m} : Shape{m, k}, 1),
              b = some(type, tb ? Shape{n, k} : Shape{k, n}, 2);
      Guarded c = some(type, {m, n}, 3);
      d.run(by_pairs(type) ? "MatmulByPairs" : "Matmul",
            Matmul{
                .c = c, .a = a, .b = b, .bias = {}, .transpose_a = ta, .transpose_b = tb, .accumulate = true},
            {&c});
    }
}

void attention(Digest& d, DType type, const AttentionMask& mask, float cap = 0) {
  const int64_t batch = 2, seq = 101, heads = 4, kv = 2, dim = 40;
  Guarded qkv = some(type, {batch * seq, (heads + 2 * kv) * dim}, 1),
          dqkv(type, {batch * seq, (heads + 2 * kv) * dim});
  Guarded y(type, {batch * seq, heads * dim}), dy = some(type, {batch * seq, heads * dim}, 2),
                                               lse(DType::fp32, {batch * heads * seq});
  const AttentionForward forward{.y = y,
                                 .lse = lse,
                                 .qkv = qkv,
                                 .batch = batch,
                                 .seq = seq,
                                 .heads = heads,
                                 .kv_heads = kv,
                                 .head_dim = dim,
                                 .cap = cap,
                                 .mask = mask};
  const bool pairs = by_pairs(type);
  d.run(pairs ? "AttentionForwardByPairs" : "AttentionForward", forward, {&y, &lse});
  d.run(pairs ? "AttentionBackwardByPairs" : "AttentionBackward", AttentionBackward{dqkv, dy, forward},
        {&dqkv});
}

void rotations(Digest& d, DType type) {
  const int64_t rows = 202, seq = 101, heads = 4, kv = 2, dim = 40;
  Guarded qkv = some(type, {rows, (heads + 2 * kv) * dim}, 1);
  Guarded cos = some(DType::fp32, {seq, dim / 2}, 2), sin = some(DType::fp32, {seq, dim / 2}, 3);
  for (bool inverse : {false, true})
    d.run("Rotary",
          Rotary{.qkv = qkv,
                 .cos = cos,
                 .sin = sin,
                 .seq = seq,
                 .heads = heads,
                 .kv_heads = kv,
                 .head_dim = dim,
                 .inverse = inverse},
          {&qkv});
}

TEST(Digest, DISABLED_Print) {
  Digest d;
  Guarded documents(DType::int32, {2, 101}, document_starts(2, 101, 3));
  for (DType type : kTrainingTypes) {
    elementwise(d, type), rows(d, type), products(d, type), rotations(d, type);
    for (const AttentionMask& mask : {AttentionMask{}, {.window = 17}, {.documents = documents}})
      attention(d, type, mask);
    attention(d, type, {}, 1.5f);
  }
}

std::map<std::string, std::string> digests(const std::string& environment) {
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) return {};
  const std::string command =
      environment + " '" + self + "' --gtest_also_run_disabled_tests --gtest_filter=Digest.DISABLED_Print";
  FILE* pipe = popen(command.c_str(), "r");
  std::map<std::string, std::string> found;
  std::array<char, 256> line;
  while (pipe && std::fgets(line.data(), line.size(), pipe)) {
    char name[64], hash[64];
    if (std::sscanf(line.data(), "digest %63s %63s", name, hash) == 2) found[name] = hash;
  }
  EXPECT_TRUE(pipe && pclose(pipe) == 0) << command;
  return found;
}

TEST(Kernels, GiveTheSameBitsOnEveryInstructionSetAndThreadCount) {
  const auto one = digests("OMP_NUM_THREADS=1");
  ASSERT_EQ(one.size(), 147u);
  for (const char* environment : {"OMP_NUM_THREADS=2", "OMP_NUM_THREADS=3"})
    EXPECT_EQ(digests(environment), one);
  int alike = 0;
  for (const auto& [name, hash] : digests("OMP_NUM_THREADS=2 CLEAVE_ISA=v3")) {
    const auto same = one.find(name);  // AVX2 has no pairs
    if (same == one.end()) continue;
    EXPECT_EQ(hash, same->second) << name;
    ++alike;
  }
  EXPECT_EQ(alike, one.contains("AttentionForwardByPairs/90") ? 135 : 147);
}

}  // namespace
}  // namespace cleave::kernels
