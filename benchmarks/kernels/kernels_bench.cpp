// Every kernel at training sizes, in GFLOP/s or GB/s (on a GPU TFLOP/s or TB/s) and percent of the ceiling
// measured at the start of the run.
// usage: OMP_NUM_THREADS=2 kernels_bench [--gpu_only] [--limits=FILE] [--benchmark_filter=...]
//   --gpu_only     no rows and no ceilings of the CPU
//   --limits=FILE  a GPU's ceilings: read from the file where it is there, else measured and written to it
#include <benchmark/benchmark.h>

#include "benchmarks/kernels/rows.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"

namespace cleave::benchmarks {
namespace {

// Sizes on a GPU are larger by this factor: enough work to fill it, and operands beyond its caches.
int64_t larger(Device device, int64_t factor) { return device.is_cuda() ? factor : 1; }

// GPT-2's vocabulary, and with the padding that its table has (TensorAxis::padded_part).
constexpr int64_t kVocab = 50257, kPaddedVocab = 50304;
// Rows of logits at a time: about those of the CPU, and a GPU's.
int64_t head_rows(Device device) { return device.is_cuda() ? 4096 : 512; }

void add_products(Device device, DType type) {
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
                          {"narrow", t / 4, 384, 128}}) {
    const std::string name = fmt::format("matmul/{}", l.name);
    add_row(device, name + "/forward" + suffix, [=](Operands& o) {
      const kernels::Matmul op{.c = o.make(type, {l.rows, l.out}),
                               .a = o.make(type, {l.rows, l.in}),
                               .b = o.make(type, {l.out, l.in}),
                               .bias = o.make(type, {l.out}),
                               .transpose_b = true};
      return o.work(op, 0, op.flops());
    });
    add_row(device, name + "/dx" + suffix, [=](Operands& o) {
      const kernels::Matmul op{.c = o.make(type, {l.rows, l.in}),
                               .a = o.make(type, {l.rows, l.out}),
                               .b = o.make(type, {l.out, l.in})};
      return o.work(op, 0, op.flops());
    });
    add_row(device, name + "/dw" + suffix, [=](Operands& o) {
      const kernels::Matmul op{.c = o.make(DType::fp32, {l.out, l.in}),
                               .a = o.make(type, {l.rows, l.out}),
                               .b = o.make(type, {l.rows, l.in}),
                               .transpose_a = true,
                               .accumulate = true};
      return o.work(op, 0, op.flops());
    });
  }
  add_row(device, "matmul/one_row" + suffix, [=](Operands& o) {
    const kernels::Matmul op{.c = o.make(type, {1, kPaddedVocab}),
                             .a = o.make(type, {1, 768}),
                             .b = o.make(type, {kPaddedVocab, 768}),
                             .transpose_b = true};
    Work w = o.work(op, double(op.b.bytes()));
    w.reads_only = true;
    return w;
  });
}

void add_attention(Device device, DType type) {
  struct Heads {
    int64_t seq, heads, dim;
  };
  for (const auto& [seq, heads, dim] : {Heads{1024, 12, 64}, {1024, 6, 128}, {4096, 16, 128}}) {
    if (seq == 4096 && !device.is_cuda()) continue;
    const int64_t batch = larger(device, seq == 4096 ? 4 : 32), width = heads * dim;
    const std::string suffix = fmt::format("/T{}/dim{}/{}", seq, dim, name_of(type));
    add_row(device, "attention/forward" + suffix, [=](Operands& o) {
      const kernels::AttentionForward op{.y = o.make(type, {batch * seq, width}),
                                         .lse = o.make(DType::fp32, {batch, heads, seq}),
                                         .qkv = o.make(type, {batch * seq, 3 * width}),
                                         .batch = batch,
                                         .seq = seq,
                                         .heads = heads,
                                         .kv_heads = heads,
                                         .head_dim = dim};
      return o.work(op, 0, op.flops());
    });
    add_row(device, "attention/backward" + suffix, [=](Operands& o) {
      const kernels::AttentionForward forward{.y = o.make(type, {batch * seq, width}),
                                              .lse = o.make(DType::fp32, {batch, heads, seq}),
                                              .qkv = o.make(type, {batch * seq, 3 * width}),
                                              .batch = batch,
                                              .seq = seq,
                                              .heads = heads,
                                              .kv_heads = heads,
                                              .head_dim = dim};
      kernels::launch(forward, o.stream());
      const kernels::AttentionBackward op{.dqkv = o.make(type, {batch * seq, 3 * width}),
                                          .dy = o.make(type, {batch * seq, width}),
                                          .forward = forward};
      return o.work(op, 0, op.flops());
    });
  }
}

void add_rowwise(Device device, DType type) {
  const int64_t rows = 8192 * larger(device, 8), width = 768, n = rows * width;
  const double size = double(size_of(type)) * double(n);
  const std::string suffix = fmt::format("/{}", name_of(type));
  add_row(device, "layer_norm/forward" + suffix, [=](Operands& o) {
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
  add_row(device, "layer_norm/backward" + suffix, [=](Operands& o) {
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
  add_row(device, "rms_norm/forward" + suffix, [=](Operands& o) {
    const Tensor x = o.make(type, {rows, width});
    return o.work(kernels::RmsNormForward{.y = o.make(type, {rows, width}),
                                          .sum = x,
                                          .rstd = o.make(DType::fp32, {rows}),
                                          .x = x,
                                          .residual = o.make(type, {rows, width}, 0),
                                          .weight = o.make(type, {width})},
                  4 * size);
  });
  add_row(device, "rms_norm/backward" + suffix, [=](Operands& o) {
    return o.work(kernels::RmsNormBackward{.dx = o.make(type, {rows, width}),
                                           .dweight = o.make(DType::fp32, {width}),
                                           .dy = o.make(type, {rows, width}),
                                           .x = o.make(type, {rows, width}),
                                           .rstd = o.make(DType::fp32, {rows}),
                                           .weight = o.make(type, {width}),
                                           .dresidual = o.make(type, {rows, width})},
                  4 * size);
  });
  add_row(device, "rotary" + suffix, [=](Operands& o) {
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
  add_row(device, "bias_gradient" + suffix, [=](Operands& o) {
    Work w = o.work(
        kernels::BiasGradient{.db = o.make(DType::fp32, {width}), .dy = o.make(type, {rows, width})}, size);
    w.reads_only = true;
    return w;
  });
  add_row(device, "embedding/forward" + suffix, [=](Operands& o) {
    return o.work(kernels::EmbeddingForward{.y = o.make(type, {rows, width}),
                                            .tokens = o.tokens(rows, kVocab),
                                            .wte = o.make(type, {kPaddedVocab, width}),
                                            .wpe = o.make(type, {1024, width}),
                                            .seq = 1024},
                  2 * size);
  });
  add_row(device, "embedding/backward" + suffix, [=](Operands& o) {
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
    add_row(device, name + suffix, [=, columns = columns](Operands& o) {
      const int64_t tokens = head_rows(device);
      return o.work(kernels::CrossEntropy{.logits = o.make(type, {tokens, columns}),
                                          .losses = o.make(DType::fp32, {tokens}),
                                          .targets = o.tokens(tokens, kVocab),
                                          .vocab = kVocab,
                                          .scale = 1},
                    2.0 * double(tokens * columns * size_of(type)));
    });
}

void add_elementwise(Device device, DType type) {
  const int64_t most = 8192 * larger(device, 4), n = most * 3072;
  const double size = double(size_of(type)) * double(n);
  const std::string suffix = fmt::format("/{}", name_of(type));
  for (const auto& [name, kind] : {std::pair{"gelu_tanh", kernels::Activation::gelu_tanh},
                                   {"gelu_erf", kernels::Activation::gelu_erf}}) {
    add_row(device, std::string(name) + "/forward" + suffix, [=, kind = kind](Operands& o) {
      return o.work(kernels::ActivationForward{.y = o.make(type, {n}), .x = o.make(type, {n}), .kind = kind},
                    2 * size);
    });
    add_row(device, std::string(name) + "/backward" + suffix, [=, kind = kind](Operands& o) {
      return o.work(
          kernels::ActivationBackward{
              .dx = o.make(type, {n}), .dy = o.make(type, {n}), .x = o.make(type, {n}), .kind = kind},
          3 * size);
    });
  }
  const Shape narrow{most, 3072}, both{most, 2 * 3072};
  add_row(device, "swiglu/forward" + suffix, [=](Operands& o) {
    return o.work(kernels::GatedForward{.y = o.make(type, narrow), .x = o.make(type, both)}, 3 * size);
  });
  add_row(device, "swiglu/backward" + suffix, [=](Operands& o) {
    return o.work(
        kernels::GatedBackward{.dx = o.make(type, both), .dy = o.make(type, narrow), .x = o.make(type, both)},
        5 * size);
  });
  add_row(device, "add" + suffix, [=](Operands& o) {
    return o.work(kernels::Add{.y = o.make(type, {n}), .a = o.make(type, {n}), .b = o.make(type, {n})},
                  3 * size);
  });
  add_row(device, "dropout" + suffix, [=](Operands& o) {
    return o.work(kernels::Dropout{.y = o.make(type, {n}), .x = o.make(type, {n}), .p = 0.1f, .philox = {}},
                  2 * size);
  });
  add_row(device, "cast_to_fp32" + suffix, [=](Operands& o) {
    return o.work(kernels::Cast{.y = o.make(DType::fp32, {n}), .x = o.make(type, {n})},
                  size + 4.0 * double(n));
  });
  add_row(device, "sum_squares" + suffix, [=](Operands& o) {
    Work w = o.work(kernels::SumSquares{.out = o.make(DType::fp64, {1}), .x = o.make(type, {n})}, size);
    w.reads_only = true;
    return w;
  });
}

}  // namespace
}  // namespace cleave::benchmarks

int main(int argc, char** argv) {
  using namespace cleave;
  using namespace cleave::benchmarks;
  benchmark::Initialize(&argc, argv);
  bool gpu_only = false;
  std::string limits;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--gpu_only")
      gpu_only = true;
    else if (option.starts_with("--limits="))
      limits = option.substr(option.find('=') + 1);
    else {
      fmt::print(stderr,
                 "kernels_bench: {} is unknown; it takes --gpu_only, --limits=FILE and --benchmark_...\n",
                 option);
      return 2;
    }
  }
  const std::vector<Device> devices = bench_devices(gpu_only);
  measure_limits(devices, limits);
  for (const Device device : devices) {
    for (const DType type : {DType::fp32, DType::bf16}) {
      add_products(device, type);
      add_dense(device, type);
      add_attention(device, type);
      add_rowwise(device, type);
      add_elementwise(device, type);
    }
    add_updates(device);
  }
  benchmark::RunSpecifiedBenchmarks();
}
