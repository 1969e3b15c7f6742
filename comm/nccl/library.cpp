#include "comm/nccl/library.h"

#include "device/cuda_library.h"

namespace cleave::comm {
namespace {

struct Loaded {
  NcclLibrary api{};
  NcclStatus status;
};

Loaded load() {
  Loaded out;
  NcclLibrary& l = out.api;
  CudaLibrary library(kNccl);
  library.find("ncclGetVersion", l.get_version);
  library.find("ncclGetUniqueId", l.get_unique_id);
  library.find("ncclCommInitRankConfig", l.comm_init_rank_config);
  library.find("ncclCommDestroy", l.comm_destroy);
  library.find("ncclCommAbort", l.comm_abort);
  library.find("ncclCommGetAsyncError", l.comm_get_async_error);
  library.find("ncclGetErrorString", l.get_error_string);
  library.find("ncclGetLastError", l.get_last_error);
  library.find("ncclAllGather", l.all_gather);
  library.find("ncclReduceScatter", l.reduce_scatter);
  library.find("ncclAllReduce", l.all_reduce);
  library.find("ncclBroadcast", l.broadcast);
  library.find("ncclReduce", l.reduce);
  library.find("ncclSend", l.send), library.find("ncclRecv", l.recv);
  library.find("ncclGroupStart", l.group_start);
  library.find("ncclGroupEnd", l.group_end);
  library.find("ncclMemAlloc", l.mem_alloc);
  library.find("ncclMemFree", l.mem_free);
  library.find("ncclCommRegister", l.comm_register);
  library.find("ncclCommDeregister", l.comm_deregister);
  out.status = {library.version(), library.problem(), library.path(), library.place()};
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
