#include "plan/bench/kernel_rows.h"

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cpu/onednn.h"
#include "kernels/dense.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/fp8.h"
#include "kernels/loss.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "kernels/update.h"

namespace cleave::bench {
namespace {

using Prepare = std::function<Work(Operands&)>;

void add(std::vector<KernelRow>& list, DType type, std::string name, Prepare prepare) {
  list.push_back({.name = std::move(name), .type = type, .prepare = std::move(prepare), .by_onednn = {}});
}

// GPU sizes are larger by this factor: enough work to fill it, and operands that exceed its caches.
int64_t larger(Device device, int64_t factor) { return device.is_cuda() ? factor : 1; }

// GPT-2's vocabulary, and its table's padded size (TensorAxis::padded_part).
constexpr int64_t kVocab = 50257, kPaddedVocab = 50304;
// Rows of logits at a time: about those of the CPU, and those of a GPU.
int64_t head_rows(Device device) { return device.is_cuda() ? 4096 : 512; }

// oneDNN's version of the product, without a bias.
Work by_onednn(const kernels::Matmul& op) {
  return {.run = [gemm = kernels::cpu::onednn_gemm_of(op)] { kernels::cpu::onednn_gemm(gemm); },
          .flops = op.flops()};
}

void add_product(std::vector<KernelRow>& list, Device device, DType type, std::string name,
                 const std::function<kernels::Matmul(Operands&)>& make) {
  KernelRow row{.name = std::move(name), .type = type, .prepare = {}, .by_onednn = {}};
  row.prepare = [make](Operands& o) {
    const kernels::Matmul op = make(o);
    return o.work(op, 0, op.flops());
  };
  if (!device.is_cuda()) row.by_onednn = [make](Operands& o) { return by_onednn(make(o)); };
  list.push_back(std::move(row));
}

void add_products(std::vector<KernelRow>& list, Device device, DType type) {
  struct Linear {
    const char* name;
    int64_t rows, out, in;
  };
  const std::string suffix = fmt::format("/{}", name_of(type));
  const int64_t t = 1024 * larger(device, 32);
  for (const Linear& l : {Linear{"qkv", t, 2304, 768},
                          {"proj", t, 768, 768},
                          {"up", t, 3072, 768},
                          {"down", t, 768, 3072},
                          {"head", head_rows(device), kPaddedVocab, 768},
                          {"head_unpadded", head_rows(device), kVocab, 768},
                          {"narrow", t / 4, 384, 128},
                          {"narrow_head", head_rows(device), kPaddedVocab, 128}}) {
    const std::string name = fmt::format("matmul/{}", l.name);
    add_product(list, device, type, name + "/forward" + suffix, [=](Operands& o) {
      return kernels::Matmul{.c = o.make(type, {l.rows, l.out}),
                             .a = o.make(type, {l.rows, l.in}),
                             .b = o.make(type, {l.out, l.in}),
                             .bias = o.make(type, {l.out}),
                             .transpose_b = true};
    });
    add_product(list, device, type, name + "/dx" + suffix, [=](Operands& o) {
      return kernels::Matmul{.c = o.make(type, {l.rows, l.in}),
                             .a = o.make(type, {l.rows, l.out}),
                             .b = o.make(type, {l.out, l.in})};
    });
    add_product(list, device, type, name + "/dw" + suffix, [=](Operands& o) {
      return kernels::Matmul{.c = o.make(DType::fp32, {l.out, l.in}),
                             .a = o.make(type, {l.rows, l.out}),
                             .b = o.make(type, {l.rows, l.in}),
                             .transpose_a = true,
                             .accumulate = true};
    });
  }
  add(list, type, "matmul/one_row" + suffix, [=](Operands& o) {
    const kernels::Matmul op{.c = o.make(type, {1, kPaddedVocab}),
                             .a = o.make(type, {1, 768}),
                             .b = o.make(type, {kPaddedVocab, 768}),
                             .transpose_b = true};
    Work w = o.work(op, double(op.b.bytes()));
    w.reads_only = true;
    return w;
  });
}

void add_attention(std::vector<KernelRow>& list, Device device, DType type) {
  struct Heads {
    int64_t batch, seq, heads, dim;
  };
  const std::vector<Heads> on_cpu{{4, 256, 12, 64}, {4, 256, 6, 128}, {1, 1024, 12, 64}, {1, 1024, 6, 128}};
  const std::vector<Heads> on_gpu{{32, 1024, 12, 64}, {32, 1024, 6, 128}, {4, 4096, 16, 128}};
  for (const auto& [batch, seq, heads, dim] : device.is_cuda() ? on_gpu : on_cpu) {
    const int64_t width = heads * dim;
    const std::string suffix = fmt::format("/T{}/dim{}/{}", seq, dim, name_of(type));
    const auto forward_of = [=](Operands& o) {
      return kernels::AttentionForward{.y = o.make(type, {batch * seq, width}),
                                       .lse = o.make(DType::fp32, {batch, heads, seq}),
                                       .qkv = o.make(type, {batch * seq, 3 * width}),
                                       .batch = batch,
                                       .seq = seq,
                                       .heads = heads,
                                       .kv_heads = heads,
                                       .head_dim = dim};
    };
    add(list, type, "attention/forward" + suffix, [=](Operands& o) {
      const kernels::AttentionForward op = forward_of(o);
      return o.work(op, 0, op.flops());
    });
    const auto backward = [=](Operands& o) {
      const kernels::AttentionForward forward = forward_of(o);
      kernels::launch(forward, o.stream());
      const kernels::AttentionBackward op{.dqkv = o.make(type, {batch * seq, 3 * width}),
                                          .dy = o.make(type, {batch * seq, width}),
                                          .forward = forward};
      return o.work(op, 0, op.flops());
    };
    add(list, type, "attention/backward" + suffix, backward);
    if (!device.is_cuda() || type == DType::fp32) continue;
    // "deterministic": false; then cuDNN adds the queries' gradient with atomics.
    add(list, type, "attention/backward_any_order" + suffix, [=](Operands& o) {
      o.stream().allow_any_order();
      return backward(o);
    });
  }
}

void add_rowwise(std::vector<KernelRow>& list, Device device, DType type) {
  const int64_t rows = 8192 * larger(device, 8), width = 768, n = rows * width;
  const double size = double(size_of(type)) * double(n);
  const std::string suffix = fmt::format("/{}", name_of(type));
  add(list, type, "layer_norm/forward" + suffix, [=](Operands& o) {
    const Tensor x = o.make(type, {rows, width});
    return o.work(kernels::LayerNormForward{.y = o.make(type, {rows, width}),
                                            .sum = x,
                                            .mean = o.make(DType::fp32, {rows}),
                                            .rstd = o.make(DType::fp32, {rows}),
                                            .x = x,
                                            .residual = o.make(type, {rows, width}, 0),
                                            .weight = o.make(type, {width}),
                                            .bias = o.make(type, {width})},
                  4 * size);
  });
  add(list, type, "layer_norm/backward" + suffix, [=](Operands& o) {
    return o.work(kernels::LayerNormBackward{.dx = o.make(type, {rows, width}),
                                             .dweight = o.make(DType::fp32, {width}),
                                             .dbias = o.make(DType::fp32, {width}),
                                             .dy = o.make(type, {rows, width}),
                                             .x = o.make(type, {rows, width}),
                                             .mean = o.make(DType::fp32, {rows}),
                                             .rstd = o.make(DType::fp32, {rows}),
                                             .weight = o.make(type, {width}),
                                             .dresidual = o.make(type, {rows, width})},
                  4 * size);
  });
  add(list, type, "rms_norm/forward" + suffix, [=](Operands& o) {
    const Tensor x = o.make(type, {rows, width});
    return o.work(kernels::RmsNormForward{.y = o.make(type, {rows, width}),
                                          .sum = x,
                                          .rstd = o.make(DType::fp32, {rows}),
                                          .x = x,
                                          .residual = o.make(type, {rows, width}, 0),
                                          .weight = o.make(type, {width})},
                  4 * size);
  });
  add(list, type, "rms_norm/backward" + suffix, [=](Operands& o) {
    return o.work(kernels::RmsNormBackward{.dx = o.make(type, {rows, width}),
                                           .dweight = o.make(DType::fp32, {width}),
                                           .dy = o.make(type, {rows, width}),
                                           .x = o.make(type, {rows, width}),
                                           .rstd = o.make(DType::fp32, {rows}),
                                           .weight = o.make(type, {width}),
                                           .dresidual = o.make(type, {rows, width})},
                  4 * size);
  });
  add(list, type, "rotary" + suffix, [=](Operands& o) {
    const int64_t seq = 1024, heads = 12, kv = 4, dim = width / heads, turned = (heads + kv) * dim;
    return o.work(kernels::Rotary{.qkv = o.make(type, {rows, turned + kv * dim}),
                                  .cos = o.make(DType::fp32, {seq, dim / 2}),
                                  .sin = o.make(DType::fp32, {seq, dim / 2}, 0),
                                  .seq = seq,
                                  .heads = heads,
                                  .kv_heads = kv,
                                  .head_dim = dim},
                  2.0 * double(size_of(type) * rows * turned));
  });
  add(list, type, "bias_gradient" + suffix, [=](Operands& o) {
    Work w = o.work(
        kernels::BiasGradient{.db = o.make(DType::fp32, {width}), .dy = o.make(type, {rows, width})}, size);
    w.reads_only = true;
    return w;
  });
  add(list, type, "embedding/forward" + suffix, [=](Operands& o) {
    return o.work(kernels::EmbeddingForward{.y = o.make(type, {rows, width}),
                                            .tokens = o.tokens(rows, kVocab),
                                            .wte = o.make(type, {kPaddedVocab, width}),
                                            .wpe = o.make(type, {1024, width}),
                                            .seq = 1024},
                  2 * size);
  });
  add(list, type, "embedding/backward" + suffix, [=](Operands& o) {
    return o.work(kernels::EmbeddingBackward{.dwte = o.make(DType::fp32, {kPaddedVocab, width}),
                                             .dwpe = o.make(DType::fp32, {1024, width}),
                                             .dy = o.make(type, {rows, width}),
                                             .tokens = o.tokens(rows, kVocab),
                                             .seq = 1024,
                                             .accumulate_wte = true,
                                             .accumulate_wpe = true},
                  2 * size + 8 * double(n));
  });
  for (const auto& [name, columns] :
       {std::pair{"cross_entropy", kPaddedVocab}, {"cross_entropy_unpadded", kVocab}})
    add(list, type, name + suffix, [=, columns = columns](Operands& o) {
      const int64_t tokens = head_rows(device);
      return o.work(kernels::CrossEntropy{.logits = o.make(type, {tokens, columns}),
                                          .losses = o.make(DType::fp32, {tokens}),
                                          .targets = o.tokens(tokens, kVocab),
                                          .vocab = kVocab,
                                          .scale = 1},
                    2.0 * double(tokens * columns * size_of(type)));
    });
}

void add_elementwise(std::vector<KernelRow>& list, Device device, DType type) {
  const int64_t most = 8192 * larger(device, 4), n = most * 3072;
  const double size = double(size_of(type)) * double(n);
  const std::string suffix = fmt::format("/{}", name_of(type));
  for (const auto& [name, kind] : {std::pair{"gelu_tanh", kernels::Activation::gelu_tanh},
                                   {"gelu_erf", kernels::Activation::gelu_erf}}) {
    add(list, type, std::string(name) + "/forward" + suffix, [=, kind = kind](Operands& o) {
      return o.work(kernels::ActivationForward{.y = o.make(type, {n}), .x = o.make(type, {n}), .kind = kind},
                    2 * size);
    });
    add(list, type, std::string(name) + "/backward" + suffix, [=, kind = kind](Operands& o) {
      return o.work(
          kernels::ActivationBackward{
              .dx = o.make(type, {n}), .dy = o.make(type, {n}), .x = o.make(type, {n}), .kind = kind},
          3 * size);
    });
  }
  const Shape narrow{most, 3072}, both{most, 2 * 3072};
  add(list, type, "swiglu/forward" + suffix, [=](Operands& o) {
    return o.work(kernels::GatedForward{.y = o.make(type, narrow), .x = o.make(type, both)}, 3 * size);
  });
  add(list, type, "swiglu/backward" + suffix, [=](Operands& o) {
    return o.work(
        kernels::GatedBackward{.dx = o.make(type, both), .dy = o.make(type, narrow), .x = o.make(type, both)},
        5 * size);
  });
  add(list, type, "add" + suffix, [=](Operands& o) {
    return o.work(kernels::Add{.y = o.make(type, {n}), .a = o.make(type, {n}), .b = o.make(type, {n})},
                  3 * size);
  });
  add(list, type, "dropout" + suffix, [=](Operands& o) {
    return o.work(kernels::Dropout{.y = o.make(type, {n}), .x = o.make(type, {n}), .p = 0.1f, .philox = {}},
                  2 * size);
  });
  add(list, type, "cast_to_fp32" + suffix, [=](Operands& o) {
    return o.work(kernels::Cast{.y = o.make(DType::fp32, {n}), .x = o.make(type, {n})},
                  size + 4.0 * double(n));
  });
  add(list, type, "sum_squares" + suffix, [=](Operands& o) {
    Work w = o.work(kernels::SumSquares{.out = o.make(DType::fp64, {1}), .x = o.make(type, {n})}, size);
    w.reads_only = true;
    return w;
  });
}

// MLP of GPT-2 124M; compared with the plain products (matmul/up, matmul/down) it shows the cost of an
// epilogue.
void add_dense(std::vector<KernelRow>& list, Device device, DType type) {
  const int64_t rows = device.is_cuda() ? 32768 : 1024, width = 768, wide = 4 * width;
  const std::string suffix = fmt::format("/{}", name_of(type));
  add(list, type, "dense/up_gelu/forward" + suffix, [=](Operands& o) {
    const kernels::DenseActivation op{.y = o.make(type, {rows, wide}),
                                      .hidden = o.make(type, {rows, wide}),
                                      .x = o.make(type, {rows, width}),
                                      .weight = o.make(type, {wide, width}),
                                      .bias = o.make(type, {wide})};
    return o.work(op, 0, op.flops());
  });
  add(list, type, "dense/down_gelu/dx" + suffix, [=](Operands& o) {
    const kernels::DenseActivationGradient op{.dhidden = o.make(type, {rows, wide}),
                                              .dy = o.make(type, {rows, width}),
                                              .weight = o.make(type, {width, wide}),
                                              .hidden = o.make(type, {rows, wide})};
    return o.work(op, 0, op.flops());
  });
  // MLP of Qwen2.5 1.5B, only on a GPU: on a CPU it is a product and swiglu/forward.
  const int64_t qwen = 1536, middle = 8960;
  if (device.is_cuda()) {
    add(list, type, "dense/up_swiglu/forward" + suffix, [=](Operands& o) {
      const kernels::DenseGated op{.y = o.make(type, {rows, middle}),
                                   .hidden = o.make(type, {rows, 2 * middle}),
                                   .x = o.make(type, {rows, qwen}),
                                   .weight = o.make(type, {2 * middle, qwen}),
                                   .bias = {}};
      return o.work(op, 0, op.flops());
    });
    add(list, type, "dense/down_swiglu/dx" + suffix, [=](Operands& o) {
      const kernels::DenseGatedGradient op{.dhidden = o.make(type, {rows, 2 * middle}),
                                           .dactive = o.make(type, {rows, middle}),
                                           .dy = o.make(type, {rows, qwen}),
                                           .weight = o.make(type, {qwen, middle}),
                                           .hidden = o.make(type, {rows, 2 * middle})};
      return o.work(op, 0, op.flops());
    });
  }
  add(list, type, "dense/up_bias/dw" + suffix, [=](Operands& o) {
    const kernels::DenseWeightGradient op{.dweight = o.make(DType::fp32, {wide, width}),
                                          .dbias = o.make(DType::fp32, {wide}),
                                          .dy = o.make(type, {rows, wide}),
                                          .x = o.make(type, {rows, width}),
                                          .accumulate_weight = true};
    return o.work(op, 0, op.flops());
  });
}

// Rounding an operand of GPT-2 124M's MLP to 8 bits, straight and transposed, and its product.
void add_fp8(std::vector<KernelRow>& list, Device device) {
  const int64_t rows = device.is_cuda() ? 32768 : 1024, width = 768, wide = 4 * width;
  const auto to_fp8 = [](Operands& o, Shape codes, Tensor x, bool transposed) {
    return kernels::ToFp8{.codes = o.make(DType::fp8_e4m3, codes),
                          .scales = o.make(DType::fp32, {1}),
                          .seen = o.make(DType::fp32, {1}),
                          .x = x,
                          .history = o.make(DType::fp32, {16}),
                          .transposed = transposed};
  };
  for (const bool transposed : {false, true})
    add(list, DType::bf16, transposed ? "to_fp8/columns/bf16" : "to_fp8/rows/bf16", [=](Operands& o) {
      const Shape codes = transposed ? Shape{wide, rows} : Shape{rows, wide};
      return o.work(to_fp8(o, codes, o.make(DType::bf16, {rows, wide}), transposed),
                    3.0 * double(rows * wide));
    });
  add(list, DType::bf16, "fp8/up/forward/bf16", [=](Operands& o) {
    const auto codes = [&](Shape shape) {
      const kernels::ToFp8 op = to_fp8(o, shape, o.make(DType::bf16, shape), false);
      kernels::launch(op, o.stream());
      return op;
    };
    const kernels::ToFp8 a = codes({rows, width}), b = codes({wide, width});
    const kernels::Fp8Matmul op{.c = o.make(DType::bf16, {rows, wide}),
                                .a = a.codes,
                                .b = b.codes,
                                .a_scales = a.scales,
                                .b_scales = b.scales,
                                .bias = o.make(DType::bf16, {wide})};
    return o.work(op, 0, op.flops());
  });
}

}  // namespace

std::vector<KernelRow> product_rows(Device device) {
  std::vector<KernelRow> list;
  for (const DType type : {DType::fp32, DType::bf16}) add_products(list, device, type);
  return list;
}

std::vector<KernelRow> layer_rows(Device device) {
  std::vector<KernelRow> list;
  for (const DType type : {DType::fp32, DType::bf16}) {
    add_dense(list, device, type);
    add_attention(list, device, type);
    add_rowwise(list, device, type);
    add_elementwise(list, device, type);
  }
  add_fp8(list, device);
  return list;
}

std::vector<KernelRow> update_rows(Device device, int64_t millions) {
  const int64_t n = millions * 1'000'000;
  std::vector<KernelRow> list;
  for (const auto& [name, grad, copy] :
       {std::tuple{"fp32", DType::fp32, DType::fp32}, {"bf16_copy", DType::bf16, DType::bf16}})
    add(list, DType::fp32, fmt::format("adamw/{}M/{}", millions, name),
        [=, grad = grad, copy = copy](Operands& o) {
          const bool copied = copy != DType::fp32;
          const kernels::Adam op{.param = o.make(DType::fp32, {n}),
                                 .m = o.make(DType::fp32, {n}, 0),
                                 .v = o.make(DType::fp32, {n}, 0),
                                 .copy = copied ? o.make(copy, {n}) : Tensor(),
                                 .grad = o.make(grad, {n}),
                                 .weight_decay = 0.1f};
          return o.work(op,
                        double(n) * (24.0 + double(size_of(grad)) + (copied ? double(size_of(copy)) : 0.0)));
        });
  // Small enough for the first-level cache: the cost of the loop itself.
  if (!device.is_cuda())
    add(list, DType::fp32, "adamw/2K/fp32", [](Operands& o) {
      const int64_t few = 2048;
      const kernels::Adam op{.param = o.make(DType::fp32, {few}),
                             .m = o.make(DType::fp32, {few}, 0),
                             .v = o.make(DType::fp32, {few}, 0),
                             .copy = Tensor(),
                             .grad = o.make(DType::fp32, {few}),
                             .weight_decay = 0.1f};
      return o.work(op, double(few) * 28.0);
    });
  add(list, DType::fp32, fmt::format("sgd_momentum/{}M/fp32", millions), [=](Operands& o) {
    return o.work(kernels::Sgd{.param = o.make(DType::fp32, {n}),
                               .buffer = o.make(DType::fp32, {n}, 0),
                               .grad = o.make(DType::fp32, {n}),
                               .momentum = 0.9f,
                               .first = false},
                  double(n) * 20.0);
  });
  add(list, DType::fp32, fmt::format("lion/{}M/bf16_copy", millions), [=](Operands& o) {
    return o.work(kernels::Lion{.param = o.make(DType::fp32, {n}),
                                .m = o.make(DType::fp32, {n}, 0),
                                .copy = o.make(DType::bf16, {n}),
                                .grad = o.make(DType::bf16, {n})},
                  double(n) * 20.0);
  });
  add(list, DType::fp32, "random_normal/10M", [](Operands& o) {
    const Tensor y = o.make(DType::fp32, {10'000'000});
    return o.work(kernels::RandomFill{.y = y, .philox = {1, 2}}, double(y.bytes()));
  });
  return list;
}

}  // namespace cleave::bench
