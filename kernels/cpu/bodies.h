// Bodies that are compiled once per instruction set. Arguments are plain pointers and numbers, because the
// sources in isa/ must not instantiate inline functions that the rest of the program shares.
#pragma once
#include "device/dtype.h"
#include "kernels/update_numbers.h"

namespace cleave::kernels::cpu {

enum class Isa : uint8_t { v3, v4 };  // x86-64-v3 (AVX2, FMA, F16C) and x86-64-v4 (AVX-512)

// Returns the best instruction set of this machine; CLEAVE_ISA=v3 selects the lower one. Decides once. Throws
// Error(usage) if the variable is neither v3 nor v4, or is v4 on a CPU without it.
Isa isa();

struct Vec {
  void* data = nullptr;
  DType type = DType::fp32;
};

struct UnaryArgs {  // y = f(x), or dx = f(dy, x)
  Vec y, x, dy;
  int64_t numel;
};
struct FactorArgs {  // y = f(x, factor)
  Vec y, x;
  int64_t numel;
  float factor;
};
struct AddArgs {
  Vec y, a, b;
  int64_t numel;
};
struct DropoutArgs {
  Vec y, x;
  int64_t numel;
  float p;
  uint64_t seed, stream;
  int64_t offset;
};
struct AxpyArgs {
  Vec y, x;
  int64_t numel;
  float alpha;
};
struct RandomArgs {
  float* y;
  int64_t numel;
  uint64_t seed, stream, first;
  float scale;
  bool normal;
};
struct SumArgs {
  Vec x;
  int64_t numel;
  bool squares;
  double* out;
};
struct LayerNormArgs {  // forward; sum.data and residual.data are null without a residual
  Vec y, sum, x, residual, weight, bias;
  float *mean, *rstd;
  int64_t rows, width;
  float eps;
};
struct LayerNormGradArgs {
  Vec dx, dweight, dbias, dy, x, weight, dresidual;
  const float *mean, *rstd;
  int64_t rows, width;
  bool accumulate_weight, accumulate_bias;
  float* scratch;  // layer_norm_grad_scratch(rows, width) floats
};
struct RmsNormArgs {  // forward; sum.data and residual.data are null without a residual
  Vec y, sum, x, residual, weight;
  float* rstd;
  int64_t rows, width;
  float eps, offset;
};
struct RmsNormGradArgs {
  Vec dx, dweight, dy, x, weight, dresidual;
  const float* rstd;
  int64_t rows, width;
  float offset;
  bool accumulate;
  float* scratch;  // rms_norm_grad_scratch(rows, width) floats
};
enum class GateKind : uint8_t { silu, gelu_tanh, gelu_erf, relu };
struct GatedArgs {  // forward: y from x; backward: gradient y of x, from dy and x
  Vec y, x, dy;
  int64_t rows, width;  // of one half of x
  GateKind kind;
};
struct RotaryArgs {
  Vec qkv;
  const float *cos, *sin;
  const int32_t *documents, *positions;  // or null
  int64_t rows, seq, first_position, turned_heads, stride, head_dim;
  bool inverse;
};
struct BiasArgs {
  Vec db, dy;
  int64_t rows, width;
  bool accumulate;
};
struct RoundArgs {  // y = round(x (+ y)) with fp32 sums x
  Vec y;
  const float* x;
  int64_t y_stride, rows, width;
  bool accumulate;
};
struct EmbeddingArgs {
  Vec y, wte, wpe;
  const int32_t *tokens, *positions;  // positions or null
  int64_t rows, width, seq, first_position;
  int64_t first_token, table_rows;  // tokens of the rows of wte
};
struct EmbeddingGradArgs {
  Vec dwte, dwpe, dy;
  int64_t rows, width, seq, first_row;
  int64_t first_token;
  const int32_t* order;   // rows sorted by token, stable, only tokens of the part
  const int32_t* groups;  // starts of the runs of equal tokens in `order`, group_count + 1 elements
  const int32_t* tokens;
  int64_t group_count;
  bool accumulate_wte, accumulate_wpe;
};
struct CrossEntropyArgs {
  Vec logits, dlogits;   // equal if the gradient replaces the logits
  float *losses, *hits;  // hits may be null
  const int32_t* targets;
  int64_t rows, columns, vocab;
  float scale, cap;  // cap 0: none
};
struct SoftmaxPartArgs {
  Vec logits, dlogits;  // dlogits and the fields after `stats`: gradient only
  const int32_t* targets;
  int64_t rows, columns, vocab, first;
  float* stats;          // of this part, or of all parts
  int64_t parts, part;   // part: index for hits
  float *losses, *hits;  // hits may be null
  float scale, cap;
};
struct AttentionArgs {
  Vec y, qkv, dy, dqkv;  // dy, dqkv: backward only
  float* lse;
  int64_t batch, seq, heads, kv_heads, head_dim;
  float scale, cap;          // cap 0: none
  bool causal;               // these three: AttentionMask
  int64_t window;            // 0: no bound
  const int32_t* documents;  // [batch, seq], or null
  struct {
    float p;  // 0: none
    uint64_t seed, stream;
    int64_t first_sample, first_head, all_heads;
  } dropout;              // AttentionDropout
  float* scratch;         // threads * attention_scratch(...) floats
  int64_t scratch_numel;  // per thread
};
struct KvCacheAttentionArgs {
  Vec y, qkv, keys, values;
  const int32_t *texts, *positions;  // per row
  int64_t rows, cached_positions, heads, kv_heads, head_dim;
  int64_t window;         // 0: no bound
  float scale, cap;       // cap 0: none
  float* scratch;         // threads * kv_cache_attention_scratch(head_dim) floats
  int64_t scratch_numel;  // per thread
};
template <class Numbers>
struct UpdateArgs {
  float *param, *states[2];
  Vec copy, grad;
  int64_t numel;
  Numbers with;
};
struct LambMomentsArgs {
  UpdateArgs<LambNumbers> of;
  double* squares;
};

struct GemmArgs {  // c = op(a) op(b) [+ bias] [+ c], operands as in Matmul
  float* c;
  Vec rounded;  // if set: rounded = round(op(a) op(b) [+ bias] [+ rounded]), and c is scratch for the sums
  Vec a, b;
  const float* bias;  // n floats, or null
  int64_t c_stride, rounded_stride, a_stride, b_stride;
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  float* scratch;  // gemm_scratch(m, k, team_threads()) floats
};
namespace gemm_blocks {
inline constexpr int64_t kDepth = 384, kColumnBlock = 256;
inline constexpr int64_t kChunkRows = 3840;
inline constexpr int64_t kThinRows = 8;
struct PackRange {
  int64_t begin, end, k, depth;
};
}  // namespace gemm_blocks
// Scratch of a thread: a cache line with the block's index, then a packed block of b.
inline constexpr int64_t kGemmThread = 16 + gemm_blocks::kDepth * gemm_blocks::kColumnBlock;
// Scratch for a chunk of a at one depth, padded to whole strips and, for tiles, to a whole tile's depth.
constexpr int64_t gemm_chunk_floats(int64_t m, int64_t k) {
  using namespace gemm_blocks;
  constexpr int64_t kStrip = 32, kTileDepth = 32;
  const int64_t depth = k < kTileDepth ? kTileDepth : k < kDepth ? k : kDepth;
  return (depth * ((m < kChunkRows ? m : kChunkRows) + kStrip) + 15) / 16 * 16;
}
// The same plus a block of b per thread.
constexpr int64_t gemm_scratch(int64_t m, int64_t k, int threads) {
  return gemm_chunk_floats(m, k) + threads * kGemmThread;
}

inline constexpr int64_t kNormRowBlock = 64;  // rows per partial sum of weight gradients
constexpr int64_t rms_norm_grad_scratch(int64_t rows, int64_t width) {
  return (rows + kNormRowBlock - 1) / kNormRowBlock * ((width + 15) / 16 * 16);
}
constexpr int64_t layer_norm_grad_scratch(int64_t rows, int64_t width) {
  return 2 * rms_norm_grad_scratch(rows, width);
}

namespace attention_blocks {
inline constexpr int64_t kQueries = 48, kMostQueries = 64, kKeys = 64;  // per block
constexpr int64_t padded(int64_t width) { return (width + 15) / 16 * 16; }
constexpr int64_t keys(int64_t seq) { return (seq + kKeys - 1) / kKeys * kKeys; }
}  // namespace attention_blocks

// Floats of scratch per thread: keys and values in fp32, one block of everything else.
constexpr int64_t attention_scratch(int64_t seq, int64_t head_dim) {
  using namespace attention_blocks;
  return 2 * keys(seq) * padded(head_dim) + kMostQueries * (2 * padded(head_dim) + 2 * kKeys + 64);
}
constexpr int64_t attention_grad_scratch(int64_t seq, int64_t head_dim) {
  using namespace attention_blocks;
  return keys(seq) * (9 * padded(head_dim) + 2) + 3 * kMostQueries * kKeys + 64;
}
constexpr int64_t kv_cache_attention_scratch(int64_t head_dim) {
  return 2 * attention_blocks::padded(head_dim) + attention_blocks::kKeys;
}

// Declares name(args) for both instruction sets and the dispatch between them.
#define CLEAVE_BODY(name, Args) \
  namespace v3 {                \
  void name(const Args& args);  \
  }                             \
  namespace v4 {                \
  void name(const Args& args);  \
  }                             \
  inline void name(const Args& args) { isa() == Isa::v4 ? v4::name(args) : v3::name(args); }

CLEAVE_BODY(gelu_tanh, UnaryArgs)
CLEAVE_BODY(gelu_erf, UnaryArgs)
CLEAVE_BODY(relu, UnaryArgs)
CLEAVE_BODY(silu, UnaryArgs)
CLEAVE_BODY(gelu_tanh_grad, UnaryArgs)
CLEAVE_BODY(gelu_erf_grad, UnaryArgs)
CLEAVE_BODY(relu_grad, UnaryArgs)
CLEAVE_BODY(silu_grad, UnaryArgs)
CLEAVE_BODY(add, AddArgs)
CLEAVE_BODY(dropout, DropoutArgs)
CLEAVE_BODY(cast, UnaryArgs)
CLEAVE_BODY(axpy, AxpyArgs)
CLEAVE_BODY(random_fill, RandomArgs)
CLEAVE_BODY(sum, SumArgs)
CLEAVE_BODY(gemm, GemmArgs)
namespace v4 {
// bf16 x bf16 products with vdpbf16ps of AVX512_BF16, and on the CPU's matrix unit. The models are for tests;
// the model of the matrix unit has its bits. See bf16_products().
void gemm_dots(const GemmArgs& args);
void gemm_dots_by_model(const GemmArgs& args);
void attention_dots(const AttentionArgs& args);
void attention_dots_by_model(const AttentionArgs& args);
void attention_grad_dots(const AttentionArgs& args);
void attention_grad_dots_by_model(const AttentionArgs& args);
void attention_tiles(const AttentionArgs& args);
void attention_tiles_by_model(const AttentionArgs& args);
void attention_grad_tiles(const AttentionArgs& args);
void attention_grad_tiles_by_model(const AttentionArgs& args);
void gemm_tiles(const GemmArgs& args);
void gemm_tiles_by_model(const GemmArgs& args);
}  // namespace v4
CLEAVE_BODY(layer_norm, LayerNormArgs)
CLEAVE_BODY(layer_norm_grad, LayerNormGradArgs)
CLEAVE_BODY(rms_norm, RmsNormArgs)
CLEAVE_BODY(rms_norm_grad, RmsNormGradArgs)
CLEAVE_BODY(gated, GatedArgs)
CLEAVE_BODY(gated_grad, GatedArgs)
CLEAVE_BODY(soft_cap, FactorArgs)
CLEAVE_BODY(scale, FactorArgs)
CLEAVE_BODY(rotary, RotaryArgs)
CLEAVE_BODY(bias_grad, BiasArgs)
CLEAVE_BODY(round_rows, RoundArgs)
CLEAVE_BODY(embedding, EmbeddingArgs)
CLEAVE_BODY(embedding_grad, EmbeddingGradArgs)
CLEAVE_BODY(cross_entropy, CrossEntropyArgs)
CLEAVE_BODY(softmax_part, SoftmaxPartArgs)
CLEAVE_BODY(cross_entropy_part, SoftmaxPartArgs)
CLEAVE_BODY(attention, AttentionArgs)
CLEAVE_BODY(attention_grad, AttentionArgs)
CLEAVE_BODY(kv_cache_attention, KvCacheAttentionArgs)
CLEAVE_BODY(adam, UpdateArgs<AdamNumbers>)
CLEAVE_BODY(sgd, UpdateArgs<SgdNumbers>)
CLEAVE_BODY(lion, UpdateArgs<LionNumbers>)
CLEAVE_BODY(adagrad, UpdateArgs<AdagradNumbers>)
CLEAVE_BODY(lamb_moments, LambMomentsArgs)
CLEAVE_BODY(lamb_step, UpdateArgs<LambStepNumbers>)

}  // namespace cleave::kernels::cpu
