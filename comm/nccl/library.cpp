#include "comm/nccl/library.h"

#include <dlfcn.h>

#include "core/environment.h"

namespace cleave::comm {
namespace {

struct Loaded {
  NcclLibrary api{};
  NcclStatus status;
};

// Oldest supported version: first with non-blocking calls and ncclGetLastError.
constexpr int kOldest = 21400;

template <class Function>
bool find(void* handle, const char* name, Function& function, std::string& problem, int since = kOldest) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (!function && problem.empty())
    problem =
        fmt::format("libnccl.so.2: {} is missing; install NCCL {} or newer", name, nccl_version_text(since));
  return function != nullptr;
}

Loaded load() {
  Loaded out;
  NcclLibrary& l = out.api;
  std::string& problem = out.status.problem;
  const std::string named = environment_value("CLEAVE_NCCL");
  const std::string file = named.empty() ? "libnccl.so.2" : named;
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* error = dlerror();
    problem = fmt::format(
        "NCCL: cannot be loaded ({}); install libnccl2 or nvidia-nccl-cu13 from pip, or set CLEAVE_NCCL to "
        "the file",
        error ? error : file.c_str());
    return out;
  }
  const bool all = find(handle, "ncclGetVersion", l.get_version, problem) &&
                   find(handle, "ncclGetUniqueId", l.get_unique_id, problem) &&
                   find(handle, "ncclCommInitRankConfig", l.comm_init_rank_config, problem) &&
                   find(handle, "ncclCommFinalize", l.comm_finalize, problem) &&
                   find(handle, "ncclCommDestroy", l.comm_destroy, problem) &&
                   find(handle, "ncclCommAbort", l.comm_abort, problem) &&
                   find(handle, "ncclCommGetAsyncError", l.comm_get_async_error, problem) &&
                   find(handle, "ncclGetErrorString", l.get_error_string, problem) &&
                   find(handle, "ncclGetLastError", l.get_last_error, problem) &&
                   find(handle, "ncclAllGather", l.all_gather, problem) &&
                   find(handle, "ncclReduceScatter", l.reduce_scatter, problem) &&
                   find(handle, "ncclAllReduce", l.all_reduce, problem) &&
                   find(handle, "ncclBroadcast", l.broadcast, problem) &&
                   find(handle, "ncclReduce", l.reduce, problem) &&
                   find(handle, "ncclSend", l.send, problem) && find(handle, "ncclRecv", l.recv, problem) &&
                   find(handle, "ncclGroupStart", l.group_start, problem) &&
                   find(handle, "ncclGroupEnd", l.group_end, problem);
  int version = 0;
  if (all && l.get_version(&version) == ncclSuccess) out.status.version = version;
  if (version >= kNcclRegisters) {
    find(handle, "ncclMemAlloc", l.mem_alloc, problem, kNcclRegisters);
    find(handle, "ncclMemFree", l.mem_free, problem, kNcclRegisters);
    find(handle, "ncclCommRegister", l.comm_register, problem, kNcclRegisters);
    find(handle, "ncclCommDeregister", l.comm_deregister, problem, kNcclRegisters);
  }
  if (all && out.status.version < kOldest)
    problem = fmt::format("NCCL {} is too old; install {} or newer", nccl_version_text(out.status.version),
                          nccl_version_text(kOldest));
  if (!problem.empty()) out.status.version = 0;
  return out;
}

// Loaded until the process ends.
const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

NcclStatus nccl_status() { return loaded().status; }

const NcclLibrary& nccl_library() {
  const Loaded& l = loaded();
  require(l.status.problem.empty(), Exit::usage, "{}", l.status.problem);
  return l.api;
}

}  // namespace cleave::comm
