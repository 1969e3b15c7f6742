#include "comm/gpu_transport.h"

#include <algorithm>
#include <functional>

#include "comm/device_group.h"
#include "comm/ipc/ipc.h"
#include "comm/nccl/nccl.h"
#include "comm/rendezvous/rank_process.h"
#include "core/environment.h"
#include "core/philox.h"
#include "device/cuda/cuda_memory.h"

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

// Reason why these ranks cannot use NCCL together; empty if they can.
std::string nccl_obstacle(std::span<const RankGpu> ranks, const std::string& problem) {
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
  registers = ranks[0].nccl >= kNcclRegisters;
  return registers ? ", buffers registered"
                   : fmt::format(", no buffers registered (needs NCCL {} or newer)",
                                 library_version_text(kNcclRegisters));
}

// Reason why they cannot use CUDA IPC, as far as known in advance; empty if none.
std::string ipc_obstacle(std::span<const RankGpu> ranks, const std::string& problem) {
  if (!problem.empty()) return problem;
  for (size_t r = 1; r < ranks.size(); ++r)
    if (ranks[r].host != ranks[0].host)
      return fmt::format("ranks 0 and {} are on different hosts, or in containers without shared memory", r);
  if (ranks.size() > size_t(kMostIpcRanks))
    return fmt::format("{} ranks, more than its maximum of {}", ranks.size(), kMostIpcRanks);
  return {};
}

}  // namespace

Device gpu_of_rank(int gpus, int local_rank, int local_size, bool share) {
  require(
      share || local_size <= gpus, Exit::usage,
      "{} ranks on this host with {} GPU{}; start {} (cleave launch -n {}), or add --share_gpu (for a "
      "script: CLEAVE_SHARE_GPU=1) so that ranks take turns on a GPU (slow, for tests), or use --device cpu",
      local_size, gpus, gpus == 1 ? "" : "s", gpus, gpus);
  return Device::cuda(local_rank % gpus);
}

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
  for (size_t r = 1; r < ranks.size(); ++r)
    require(on_cpu(ranks[r]) == on_cpu(ranks[0]), Exit::usage,
            "--device: rank {} computes on the CPU and rank {} on a GPU; use --device cpu on all ranks, or a "
            "GPU on all",
            on_cpu(ranks[r]) ? r : 0, on_cpu(ranks[r]) ? 0 : r);
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

std::string connect_gpus(Communicator& world, Device device, GpuTransport wanted) {
  const bool named = wanted == GpuTransport::nccl || wanted == GpuTransport::ipc;
  require(device.is_cuda() || !named, Exit::usage,
          "--gpu_transport {}: has no effect, because this rank computes on the CPU; leave the option out, "
          "or run cleave report to see why no GPU is available",
          wanted == GpuTransport::nccl ? "nccl" : "ipc");
  if (world.size() == 1) return {};
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
  std::vector<RankGpu> ranks(gpus.size());
  for (size_t r = 0; r < ranks.size(); ++r)
    ranks[r] = {gpus[r], versions[r], hosts[r], registers[r] != 0, nccl_hosts[r]};
  GpuProblems problems{nccl.problem, ""};
  GpuRoute route = gpu_route(ranks, wanted, problems);
  if (route.way == GpuTransport::ipc) problems.ipc = own->try_to_use(ipc_transport(device));
  if (!problems.ipc.empty()) route = gpu_route(ranks, wanted, problems);
  if (route.way == GpuTransport::nccl) own->use(nccl_transport(device, {route.shared_gpus, route.registers}));
  return route.line;
}

}  // namespace cleave::comm
