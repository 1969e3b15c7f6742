#include "kernels/cpu/onednn.h"

#include <signal.h>
#include <unistd.h>

#include <oneapi/dnnl/dnnl.hpp>

#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "core/cores.h"
#include "device/team.h"
#include "kernels/cpu/scratch.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace cleave::kernels::cpu {
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

#ifdef _OPENMP
// Makes OpenMP waits of oneDNN short. GCC's runtime spins for milliseconds in every wait, which takes the
// core from the awaited thread, and reads its spin variables before the program begins. However, if it has
// more threads than cores, it spins for about a microsecond and sleeps. So this starts additional threads
// that sleep for the lifetime of the process.
void keep_waits_short(int threads) {
  static std::mutex mutex;
  static int most = 0;  // smallest team size that the parked threads cover
  const std::lock_guard lock(mutex);
  if (most != 0 && threads >= most) return;
  const int parked =
      int(usable_cores().size()) - threads + 2 - (most ? int(usable_cores().size()) - most + 1 : 0);
  most = threads;
  if (parked < 2) return;
  std::thread([parked] {
    sigset_t all;  // parked threads must not receive signals
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
#pragma omp parallel num_threads(parked)
    for (;;) pause();
  }).detach();
}
#endif

// oneDNN fixes the thread count of a primitive at its creation.
int team_size() {
#ifdef _OPENMP
  const int threads = team_threads();
  if (threads > 1) keep_waits_short(threads);
  omp_set_num_threads(threads);  // for calls of this thread
  return threads;
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

std::string name_of_isa(dnnl_cpu_isa_t isa) {
  switch (isa) {
    case dnnl_cpu_isa_sse41:
      return "SSE41";
    case dnnl_cpu_isa_avx:
      return "AVX";
    case dnnl_cpu_isa_avx2:
      return "AVX2";
    case dnnl_cpu_isa_avx2_vnni:
      return "AVX2_VNNI";
    case dnnl_cpu_isa_avx512_core:
      return "AVX512_CORE";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "AVX512_CORE_VNNI";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "AVX512_CORE_BF16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "AVX512_CORE_AMX";
    default:  // of a newer oneDNN version
      return fmt::format("instruction set {:#x}", int(isa));
  }
}

}  // namespace

const OnednnAbility& onednn_ability() {
  static const OnednnAbility ability = [] {
    const dnnl_version_t* version = dnnl_version();
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    // The number of an instruction set contains the bits of all its subsets.
    constexpr int kBf16 = dnnl_cpu_isa_avx512_core_bf16;
    return OnednnAbility{.version = fmt::format("{}.{}.{}", version->major, version->minor, version->patch),
                         .instructions = name_of_isa(isa),
                         .native_bf16 = (int(isa) & kBf16) == kBf16};
  }();
  return ability;
}

bool onednn_multiplies(DType type) {
  constexpr int64_t kSize = 16;
  const OnednnGemm g{nullptr, nullptr, nullptr, nullptr, DType::fp32, type,  type,
                     kSize,   kSize,   kSize,   kSize,   false,       false, false};
  try {
    prepare(library().engine, g);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
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
    fail(Exit::internal, "oneDNN rejected a {} x {} x {} matrix product: {}", g.m, g.n, g.k, e.message);
  }
}

}  // namespace cleave::kernels::cpu
