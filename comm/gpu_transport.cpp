#include "comm/gpu_transport.h"

#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "comm/device_group.h"
#include "comm/from_peer.h"
#include "comm/ipc/ipc.h"
#include "comm/nccl/nccl.h"
#include "comm/rendezvous/rank_process.h"
#include "comm/together.h"
#include "core/environment.h"
#include "core/philox.h"
#include "device/cuda/cuda_memory.h"
#include "device/gpu_problems.h"

namespace cleave::comm {
namespace {

// Version that added several ranks per GPU, enabled by NCCL_MULTI_RANK_GPU_ENABLE.
constexpr int64_t kSharesGpus = 23000;

// Two ranks with the same GPU, and with `as_nccl_sees_them` also on the same NCCL host; -1 if there are none.
std::pair<int, int> same_gpu(std::span<const RankGpu> ranks, bool as_nccl_sees_them) {
  for (size_t b = 0; b < ranks.size(); ++b)
    for (size_t a = 0; a < b; ++a)
      if (ranks[a].gpu == ranks[b].gpu && (!as_nccl_sees_them || ranks[a].nccl_host == ranks[b].nccl_host))
        return {int(a), int(b)};
  return {-1, -1};
}

// NCCL's override of the host name.
std::string_view nccl_host_name() {
  const char* set = std::getenv("NCCL_HOSTID");
  return set ? set : "";
}

// Reason why the ranks cannot use a transport that needs whole GPUs; empty if none.
std::string slice_obstacle(std::span<const RankGpu> ranks, std::string_view transport) {
  const auto at = std::find_if(ranks.begin(), ranks.end(), [](const RankGpu& r) { return r.slice; });
  if (at == ranks.end()) return {};
  return fmt::format("rank {} has a part of a GPU (MIG), between which {} moves no data", at - ranks.begin(),
                     transport);
}

// Reason why these ranks cannot use NCCL together; empty if they can.
std::string nccl_obstacle(std::span<const RankGpu> ranks, const std::string& problem) {
  if (const std::string why = slice_obstacle(ranks, "NCCL"); !why.empty()) return why;
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].nccl == 0)
      return fmt::format("rank {} has no NCCL{}{}", r, problem.empty() ? "" : ": ", problem);
  for (size_t r = 1; r < ranks.size(); ++r)
    if (ranks[r].nccl / 100 != ranks[0].nccl / 100)
      return fmt::format(
          "NCCL: versions differ (rank 0 has {}, rank {} has {}); install the same version on all hosts",
          library_version_text(int(ranks[0].nccl)), r, library_version_text(int(ranks[r].nccl)));
  const auto [a, b] = same_gpu(ranks, true);
  if (a >= 0 && ranks[0].nccl < kSharesGpus)
    return fmt::format(
        "ranks {} and {} have the same GPU, which NCCL {} does not support; start at most one rank per GPU, "
        "or install NCCL {} or newer",
        a, b, library_version_text(int(ranks[0].nccl)), library_version_text(kSharesGpus));
  return {};
}

// Message about registered buffers; empty if no rank requests them.
std::string said_of_registering(std::span<const RankGpu> ranks, bool& registers) {
  const auto asks = [](const RankGpu& r) { return r.registers; };
  if (std::none_of(ranks.begin(), ranks.end(), asks)) return {};
  const auto not_asked = std::find_if_not(ranks.begin(), ranks.end(), asks);
  if (not_asked != ranks.end())
    return fmt::format(", no buffers registered (CLEAVE_NCCL_REGISTER is not on at rank {})",
                       not_asked - ranks.begin());
  registers = true;
  return ", buffers registered";
}

// Reason why they cannot use CUDA IPC, as far as known in advance; empty if none.
std::string ipc_obstacle(std::span<const RankGpu> ranks, const std::string& problem) {
  if (!problem.empty()) return problem;
  if (const std::string why = slice_obstacle(ranks, "CUDA IPC"); !why.empty()) return why;
  for (size_t r = 1; r < ranks.size(); ++r)
    if (ranks[r].host != ranks[0].host)
      return fmt::format("ranks 0 and {} are on different hosts, or in containers without shared memory", r);
  if (ranks.size() > size_t(kMostIpcRanks))
    return fmt::format("{} ranks, more than its maximum of {}", ranks.size(), kMostIpcRanks);
  return {};
}

// Throws Error(usage) if only some ranks have a GPU.
void require_one_kind(std::span<const RankGpu> ranks, const std::string& why_cpu) {
  const auto on_cpu = [](const RankGpu& s) { return s.gpu == 0; };
  const auto cpu = std::find_if(ranks.begin(), ranks.end(), on_cpu);
  const auto gpu = std::find_if_not(ranks.begin(), ranks.end(), on_cpu);
  if (cpu == ranks.end() || gpu == ranks.end()) return;
  fail(Exit::usage,
       "--device: rank {} computes on the CPU{} and rank {} on a GPU; give every rank a GPU, or compute on "
       "the CPU on all ranks with --device cpu (for a script: CUDA_VISIBLE_DEVICES=-1)",
       cpu - ranks.begin(), why_cpu.empty() ? "" : fmt::format(" ({})", why_cpu), gpu - ranks.begin());
}

// Throws Error(usage) if ranks have the same GPU without the user's consent.
void require_own_gpus(std::span<const RankGpu> ranks) {
  const auto [a, b] = same_gpu(ranks, false);
  if (a < 0 || (ranks[size_t(a)].shares && ranks[size_t(b)].shares)) return;
  std::set<int64_t> gpus;
  size_t here = 0;
  for (const RankGpu& r : ranks) {
    if (r.host != ranks[size_t(a)].host) continue;
    gpus.insert(r.gpu);
    ++here;
  }
  fail(
      Exit::usage,
      "GPUs: ranks {} and {} have the same one (got {} ranks on {} GPU{} of their host); start {} there "
      "(cleave launch -n {}), or add --share_gpu (for a script: CLEAVE_SHARE_GPU=1) so that ranks take turns "
      "on a GPU (slow, for tests), {}",
      a, b, here, gpus.size(), gpus.size() == 1 ? "" : "s", gpus.size(), gpus.size(), kUseTheCpu);
}

}  // namespace

GpuTransport parse_gpu_transport(std::string_view text) {
  if (text == "auto") return GpuTransport::automatic;
  if (text == "nccl") return GpuTransport::nccl;
  if (text == "ipc") return GpuTransport::ipc;
  if (text == "host") return GpuTransport::host;
  fail(Exit::usage, "--gpu_transport: unknown (got {}, expected auto, nccl, ipc or host)", text);
}

GpuRoute gpu_route(std::span<const RankGpu> ranks, GpuTransport wanted, const GpuProblems& problems) {
  GpuRoute route;
  const auto on_cpu = [](const RankGpu& s) { return s.gpu == 0; };
  if (std::all_of(ranks.begin(), ranks.end(), on_cpu)) return route;
  require_one_kind(ranks, problems.cpu);
  require_own_gpus(ranks);
  route.shared_gpus = same_gpu(ranks, false).first >= 0;
  const std::string no_nccl = nccl_obstacle(ranks, problems.nccl), no_ipc = ipc_obstacle(ranks, problems.ipc);
  const bool any = wanted == GpuTransport::automatic;
  require(wanted != GpuTransport::nccl || no_nccl.empty(), Exit::usage,
          "--gpu_transport nccl: {}; or use --gpu_transport ipc or host", no_nccl);
  require(wanted != GpuTransport::ipc || no_ipc.empty(), Exit::usage,
          "--gpu_transport ipc: {}; or use --gpu_transport nccl or host", no_ipc);
  const char* shared = route.shared_gpus ? ", several ranks on one GPU" : "";
  if (wanted == GpuTransport::nccl || (any && no_nccl.empty())) {
    route.way = GpuTransport::nccl;
    route.line = fmt::format("between GPUs: NCCL {}{}{}; sums in its own order",
                             library_version_text(int(ranks[0].nccl)), shared,
                             said_of_registering(ranks, route.registers));
  } else if (wanted == GpuTransport::ipc || (any && no_ipc.empty())) {
    route.way = GpuTransport::ipc;
    route.line =
        fmt::format("between GPUs: CUDA IPC, sums in rank order{}: {}", shared, any ? no_nccl : "asked for");
  } else {
    route.line = fmt::format("between GPUs: through pinned host memory, sums in rank order{}: {}", shared,
                             any ? no_nccl + "; no CUDA IPC: " + no_ipc : "asked for");
  }
  return route;
}

namespace {

// Text of the first rank without a GPU, at most 1 KiB. Collective.
std::string reason_of(Communicator& world, std::span<const int64_t> gpus, const std::string& mine) {
  const auto first = std::find(gpus.begin(), gpus.end(), 0);
  if (first == gpus.end() || std::count(gpus.begin(), gpus.end(), 0) == std::ssize(gpus)) return {};
  std::array<char, 1024> text{};
  std::copy_n(mine.begin(), std::min(mine.size(), text.size() - 1), text.begin());
  Stream stream;
  world.broadcast(Tensor(text.data(), DType::uint8, {int64_t(text.size())}, MemoryKind::host),
                  int(first - gpus.begin()), stream, {.what = "why a rank has no GPU"});
  return text_from_peer(text);
}

// Facts of a GPU that make a difference to users.
std::string kind_of(const Gpu& gpu) {
  return fmt::format("{}, compute capability {}.{}, {} GiB", gpu.name, gpu.major, gpu.minor,
                     (gpu.memory_bytes + (int64_t{1} << 29)) >> 30);
}

}  // namespace

GpuRoute connect_gpus(Communicator& world, const OwnDevice& mine, GpuTransport wanted) {
  const Device device = mine.device;
  const auto require_effect = [&] {
    const bool named = wanted == GpuTransport::nccl || wanted == GpuTransport::ipc;
    require(device.is_cuda() || !named, Exit::usage,
            "--gpu_transport {}: has no effect, because this rank computes on the CPU; leave the option out, "
            "or run cleave report to see why no GPU is available",
            wanted == GpuTransport::nccl ? "nccl" : "ipc");
  };
  if (world.size() == 1) return require_effect(), GpuRoute{};
  TransportAccess* own = world.transport();
  CHECK(own, "{}: a group of ranks without a transport", world.name());
  const bool ask = device.is_cuda() && (wanted == GpuTransport::automatic || wanted == GpuTransport::nccl);
  const NcclStatus nccl = ask ? nccl_status() : NcclStatus{};
  const auto gpus = own->exchange(cuda_identity(device), "naming the GPUs");
  const auto versions = own->exchange(nccl.version, "comparing NCCL's versions");
  const auto hosts = own->exchange(host_number(), "comparing the hosts");
  const auto registers =
      own->exchange(environment_value("CLEAVE_NCCL_REGISTER") == "on", "asking who registers buffers");
  const auto nccl_hosts = own->exchange(int64_t(hash_name(nccl_host_name())), "comparing NCCL's hosts");
  const auto slices = own->exchange(is_slice(mine.gpu), "asking who has a part of a GPU");
  const auto shares = own->exchange(mine.shares, "asking who shares a GPU");
  std::vector<RankGpu> ranks(gpus.size());
  for (size_t r = 0; r < ranks.size(); ++r)
    ranks[r] = {gpus[r],       versions[r],    hosts[r],      registers[r] != 0,
                nccl_hosts[r], slices[r] != 0, shares[r] != 0};
  GpuProblems problems{nccl.problem, "", reason_of(world, gpus, mine.why_cpu)};
  GpuRoute route = gpu_route(ranks, wanted, problems);
  require_effect();
  if (!device.is_cuda()) return route;
  const std::string differences = differences_of_ranks(world, {{"GPUs", kind_of(mine.gpu)}});
  if (route.way == GpuTransport::ipc) problems.ipc = own->try_to_use(ipc_transport(device));
  if (!problems.ipc.empty()) route = gpu_route(ranks, wanted, problems);
  if (route.way == GpuTransport::nccl) own->use(nccl_transport(device, {route.shared_gpus, route.registers}));
  if (!differences.empty())
    route.warning =
        differences +
        "the slowest GPU sets the pace, the smallest the memory, and other bits than on equal GPUs "
        "are possible; use equal GPUs";
  return route;
}

}  // namespace cleave::comm
