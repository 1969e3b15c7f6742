// Replacement of libnccl.so.2 (CLEAVE_NCCL names it) for ranks in processes with interpreted GPUs.
// Checks the rules of NCCL's documentation, names the rank that breaks one, and keeps calls of
// non-blocking communicators in progress for a random time. NCCL_COMM_BLOCKING overrides the configuration.
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/cuda_interpreter/calls.h"
#include "tests/cuda_interpreter/nccl_communicator.h"
#include "tests/cuda_interpreter/settings.h"

using namespace nccl_standin;
using interpreter::setting;

namespace {

struct Id {
  char magic[8];
  int process, file;
};
constexpr char kMagic[8] = "standin";
static_assert(sizeof(Id) <= sizeof(ncclUniqueId));

// Depth of the group that this thread has begun.
thread_local int depth = 0;
thread_local std::vector<Called> called;
thread_local bool refused_in_group = false;

// Enqueues the calls; for a non-blocking communicator now, or after enough queries.
ncclResult_t launch() {
  const std::vector<Called> all = std::exchange(called, {});
  if (std::exchange(refused_in_group, false)) return ncclInvalidUsage;
  if (all.empty()) return ncclSuccess;
  if (const std::string wrong = overlap(all); !wrong.empty()) return refuse(all[0].comm, wrong);
  std::map<ncclComm_t, std::vector<Called>> by_comm;
  for (const Called& c : all) by_comm[c.comm].push_back(c);
  ncclResult_t result = ncclSuccess;
  for (const auto& [comm, calls] : by_comm) {
    std::vector<Part> parts;
    for (const Called& c : calls) {
      if (c.stream != calls[0].stream)
        return refuse(comm, "a group on several streams, which is not interpreted");
      if (c.part.count > 0) parts.push_back(c.part);
    }
    if (parts.size() > kSlots) return refuse(comm, text("a group of %zu calls", parts.size()));
    if (parts.empty()) continue;
    std::unique_lock lock(comm->mutex);
    for (const Part& p : parts)
      if (const std::string no = connect(comm, p); !no.empty()) return refuse(comm, no);
    auto work = [comm, parts, s = reinterpret_cast<Stream*>(calls[0].stream)] { give(comm, s, parts); };
    if (comm->blocking || comm->random() % 2 == 0) {
      lock.unlock();  // a full stream waits for the GPU, which takes the lock
      work();
    } else {
      comm->held.push_back(work), comm->looks = 1 + int(comm->random() % kMostLooks);
      comm->state = State::settling, result = ncclInProgress;
    }
  }
  return result;
}

ncclResult_t call(const Called& c) {
  if (!c.comm) return ncclInvalidArgument;
  if (const std::string wrong = problem_of(c); !wrong.empty()) {
    refused_in_group = depth > 0;
    return refuse(c.comm, wrong);
  }
  called.push_back(c);
  return depth > 0 ? ncclSuccess : launch();
}

// State of the communicator; completes what is in progress after enough looks.
ncclResult_t look(ncclComm_t comm) {
  if (comm->shared->broken.load() == 2) return ncclInvalidUsage;
  if (comm->left) return ncclRemoteError;
  std::unique_lock lock(comm->mutex);
  const State now = comm->state;
  if (now == State::ready || now == State::finalized) return ncclSuccess;
  const bool may = now == State::joining      ? comm->shared->joined == comm->size
                   : now == State::finalizing ? comm->turn == comm->tickets
                                              : true;
  if (!may || --comm->looks > 0) return ncclInProgress;
  const auto held = std::exchange(comm->held, {});
  lock.unlock();
  for (const auto& work : held) work();
  comm->state = now == State::finalizing ? State::finalized : State::ready;
  return ncclSuccess;
}

ncclResult_t wait_for(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while ((state = look(comm)) == ncclInProgress) std::this_thread::sleep_for(std::chrono::microseconds(200));
  return state;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  CALL_OF_LIBRARY(ncclResult_t);
  return *version = int(setting("NCCL_VERSION", NCCL_VERSION_CODE)), ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclRemoteError:
      return "another rank is gone";
    case ncclInProgress:
      return "in progress";
    default:
      return "a system error";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  if (comm && comm->shared && comm->shared->broken.load() == 2) return comm->shared->why;
  return last_error.c_str();
}

// The file stays open until this process ends, because other ranks may need to find it.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  CALL_OF_LIBRARY(ncclResult_t);
  Id mine{{}, getpid(), memfd_create("nccl_standin", MFD_CLOEXEC)};
  std::memcpy(mine.magic, kMagic, sizeof kMagic);
  if (mine.file < 0 || ftruncate(mine.file, sizeof(Segment)) != 0) return ncclSystemError;
  std::memset(id, 0, sizeof *id);
  std::memcpy(id, &mine, sizeof mine);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  CALL_OF_LIBRARY(ncclResult_t);
  Id theirs;
  std::memcpy(&theirs, &id, sizeof theirs);
  if (std::memcmp(theirs.magic, kMagic, sizeof kMagic) != 0)
    return refuse(nullptr, "an id that ncclGetUniqueId did not make");
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size)
    return refuse(nullptr, text("rank %d of %d", rank, size));
  if (config && config->magic != 0xcafebeef)
    return refuse(nullptr, "a configuration that NCCL_CONFIG_INITIALIZER did not fill");
  void* at = map_file(theirs.process, theirs.file, sizeof(Segment), PROT_READ | PROT_WRITE);
  if (!at) return ncclSystemError;
  ncclComm_t comm = *out = new ncclComm;
  comm->rank = rank, comm->size = size;
  comm->shared = {static_cast<Segment*>(at), [](Segment* s) { munmap(s, sizeof *s); }};
  comm->blocking = !config || config->blocking != 0;
  if (const char* forced = std::getenv("NCCL_COMM_BLOCKING")) comm->blocking = *forced != '0';
  comm->random.seed(uint64_t(setting("SEED", 1)) * 7919 + uint64_t(rank));
  comm->looks = 1 + int(comm->random() % kMostLooks);
  comm->device = interpreter::gpu_of_thread();
  int nobody = 0;
  if (!comm->shared->size.compare_exchange_strong(nobody, size) && nobody != size)
    return refuse(comm, text("another rank says that there are %d", nobody));
  nobody = 0;
  if (!comm->me().process.compare_exchange_strong(nobody, getpid()))
    return refuse(comm, "two ranks have this number");
  comm->me().device = comm->device + 1;
  for (int r = 0; r < size; ++r)
    if (r != rank && comm->shared->members[r].device == comm->device + 1)
      return refuse(comm, text("ranks %d and %d have the same GPU, %d", r, rank, comm->device));
  ++comm->shared->joined;
  return comm->blocking ? wait_for(comm) : ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  CALL_OF_LIBRARY(ncclResult_t);
  if (!comm) return ncclInvalidArgument;
  if (comm->state == State::destroyed || comm->state == State::aborted)
    return refuse(comm, obstacle(comm, "ncclCommGetAsyncError"));
  return *state = look(comm), ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  CALL_OF_LIBRARY(ncclResult_t);
  if (const std::string no = obstacle(comm, "ncclCommFinalize"); !no.empty()) return refuse(comm, no);
  {
    std::lock_guard lock(comm->mutex);
    if (!comm->registered.empty())
      return refuse(comm, text("ncclCommFinalize with %zu buffers registered", comm->registered.size()));
    comm->state = State::finalizing, comm->looks = 1 + int(comm->random() % kMostLooks);
  }
  return comm->blocking ? wait_for(comm) : ncclInProgress;
}

// Finalizes first, and blocks until that is done.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  CALL_OF_LIBRARY(ncclResult_t);
  ncclResult_t result = ncclSuccess;
  if (comm->state != State::finalizing && comm->state != State::finalized) result = ncclCommFinalize(comm);
  if (result == ncclSuccess || result == ncclInProgress) result = wait_for(comm);
  if (result == ncclSuccess) comm->state = State::destroyed;
  return result;
}

// Work that waits on the GPU continues without having moved data.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  CALL_OF_LIBRARY(ncclResult_t);
  if (!comm) return ncclSuccess;
  if (comm->state == State::destroyed || comm->state == State::aborted)
    return refuse(comm, obstacle(comm, "ncclCommAbort"));
  std::lock_guard lock(comm->mutex);
  comm->held.clear();
  comm->state = State::aborted, comm->me().aborted = 1;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  CALL_OF_LIBRARY(ncclResult_t);
  return ++depth, ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  CALL_OF_LIBRARY(ncclResult_t);
  if (depth == 0) return refuse(nullptr, "ncclGroupEnd without ncclGroupStart");
  return --depth > 0 ? ncclSuccess : launch();
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::all_gather, in, out, count, type, ncclSum, 0}});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t by,
                               ncclComm_t comm, cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::reduce_scatter, in, out, count, type, by, 0}});
}
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t by,
                           ncclComm_t comm, cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::all_reduce, in, out, count, type, by, 0}});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::broadcast, in, out, count, type, ncclSum, root}});
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t by,
                        int root, ncclComm_t comm, cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::reduce, in, out, count, type, by, root}});
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::send, in, nullptr, count, type, ncclSum, peer}});
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t s) {
  CALL_OF_LIBRARY(ncclResult_t);
  return call({comm, s, {Op::recv, nullptr, out, count, type, ncclSum, peer}});
}

}  // extern "C"
