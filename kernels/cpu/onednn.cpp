#include "kernels/cpu/onednn.h"

#include <oneapi/dnnl/dnnl.hpp>

#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "kernels/cpu/scratch.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace cleave::cpu {
namespace {

using Md = dnnl::memory::desc;
using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, DType, DType, DType, bool, bool, bool, bool, int>;

struct Prepared {
  dnnl::matmul primitive;
  Md a, b, c, bias, scratch;
};

struct Library {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::mutex mutex;
  std::map<Key, Prepared> prepared;
};

Library& library() {
  static Library instance;
  return instance;
}

dnnl::memory::data_type type_of(DType t) {
  using D = dnnl::memory::data_type;
  return t == DType::fp32 ? D::f32 : t == DType::bf16 ? D::bf16 : D::f16;
}

// oneDNN bakes its thread count into a primitive when it is made.
int team_size() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

Md matrix(int64_t rows, int64_t columns, int64_t stride, bool transposed, DType type) {
  return Md({rows, columns}, type_of(type),
            transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1});
}

Prepared prepare(const dnnl::engine& engine, const OnednnGemm& g) {
  Prepared p;
  p.a = matrix(g.m, g.k, g.a_stride, g.transpose_a, g.a_type);
  p.b = matrix(g.k, g.n, g.transpose_b ? g.k : g.n, g.transpose_b, g.b_type);
  p.c = matrix(g.m, g.n, g.n, false, g.c_type);
  if (g.bias) p.bias = Md({1, g.n}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::ab);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (g.accumulate) {
    dnnl::post_ops post;
    post.append_sum(1.0f);
    attr.set_post_ops(post);
  }
#if DNNL_VERSION_MAJOR >= 3
  const auto pd = g.bias ? dnnl::matmul::primitive_desc(engine, p.a, p.b, p.bias, p.c, attr)
                         : dnnl::matmul::primitive_desc(engine, p.a, p.b, p.c, attr);
#else
  const auto desc = g.bias ? dnnl::matmul::desc(p.a, p.b, p.bias, p.c) : dnnl::matmul::desc(p.a, p.b, p.c);
  const dnnl::matmul::primitive_desc pd(desc, attr, engine);
#endif
  p.scratch = pd.scratchpad_desc();
  p.primitive = dnnl::matmul(pd);
  return p;
}

Prepared& prepared_for(Library& lib, const OnednnGemm& g) {
  const Key key{g.m,      g.n,           g.k,           g.a_stride,   g.c_type,          g.a_type,
                g.b_type, g.transpose_a, g.transpose_b, g.accumulate, g.bias != nullptr, team_size()};
  const std::lock_guard lock(lib.mutex);
  const auto found = lib.prepared.find(key);
  if (found != lib.prepared.end()) return found->second;
  return lib.prepared.emplace(key, prepare(lib.engine, g)).first->second;
}

}  // namespace

bool onednn_native_bf16() {
  static const bool native = __builtin_cpu_supports("avx512bf16");
  return native;
}

void onednn_gemm(const OnednnGemm& g) {
  try {
    Library& lib = library();
    Prepared& p = prepared_for(lib, g);
    const Scratch scratch(int64_t(p.scratch.get_size()));
    dnnl::stream stream(lib.engine);
    auto memory = [&](const Md& md, const void* data) {
      return dnnl::memory(md, lib.engine, const_cast<void*>(data));
    };
    std::unordered_map<int, dnnl::memory> args{{DNNL_ARG_SRC, memory(p.a, g.a)},
                                               {DNNL_ARG_WEIGHTS, memory(p.b, g.b)},
                                               {DNNL_ARG_DST, memory(p.c, g.c)},
                                               {DNNL_ARG_SCRATCHPAD, memory(p.scratch, scratch.data())}};
    if (g.bias) args.emplace(DNNL_ARG_BIAS, memory(p.bias, g.bias));
    p.primitive.execute(stream, args);
    stream.wait();
  } catch (const dnnl::error& e) {
    fail(Exit::internal, "oneDNN refused a {} x {} x {} matrix product: {}", g.m, g.n, g.k, e.message);
  }
}

}  // namespace cleave::cpu
