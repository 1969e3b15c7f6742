#include <algorithm>
#include <cstdlib>
#include <map>

#include "comm/gpu_reserve.h"
#include "comm/nccl/channel.h"
#include "comm/nccl/nccl_memory.h"
#include "device/cuda/check.h"

namespace cleave::comm {
namespace {

struct Elements {
  ncclDataType_t type;
  size_t count;
};

Elements elements(const Tensor& t) {
  const auto n = size_t(t.numel());
  switch (t.dtype()) {
    case DType::fp32:
      return {ncclFloat32, n};
    case DType::fp64:
      return {ncclFloat64, n};
    case DType::fp16:
      return {ncclFloat16, n};
    case DType::bf16:
      return {ncclBfloat16, n};
    case DType::int64:
      return {ncclInt64, n};
    case DType::int32:
      return {ncclInt32, n};
    case DType::uint8:  // moved only, never summed
    case DType::uint16:
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
      break;
  }
  return {ncclUint8, size_t(t.bytes())};
}

ncclRedOp_t reduction(const Waiting& w) { return w.post.by == Reduction::max ? ncclMax : ncclSum; }

class NcclGroup final : public WatchedGroup {
 public:
  NcclGroup(std::shared_ptr<Group> ranks, int rank, int device, std::shared_ptr<Watch> watch)
      : WatchedGroup(std::move(ranks), rank, device, std::move(watch)) {}

  void meet(const Waiting& w) override {
    ncclUniqueId id = new_id(rank() == 0, w);
    if (group().size() > 1) group().broadcast(w, bytes_of(id), 0);
    all_ =
        &keep(std::make_unique<NcclLink>(group(), w, NcclLink::Member{rank(), group().size(), device()}, id));
    using Nccl = const NcclLibrary&;
    const NcclLink::FirstCall calls[] = {[](Nccl n, ncclComm_t c, float* in, float* out, cudaStream_t s) {
                                           return n.all_gather(in, out, 1, ncclFloat32, c, s);
                                         },
                                         [](Nccl n, ncclComm_t c, float* in, float* out, cudaStream_t s) {
                                           return n.reduce_scatter(in, out, 1, ncclFloat32, ncclSum, c, s);
                                         },
                                         [](Nccl n, ncclComm_t c, float* in, float* out, cudaStream_t s) {
                                           return n.all_reduce(in, out, 1, ncclFloat32, ncclSum, c, s);
                                         },
                                         [](Nccl n, ncclComm_t c, float* in, float* out, cudaStream_t s) {
                                           return n.broadcast(in, out, 1, ncclFloat32, 0, c, s);
                                         },
                                         [](Nccl n, ncclComm_t c, float* in, float* out, cudaStream_t s) {
                                           return n.reduce(in, out, 1, ncclFloat32, ncclSum, 0, c, s);
                                         }};
    all_->make_first_calls(w, calls);
  }

  void meet_pairs(const Waiting& w) override {
    const NcclLink::FirstCall to_each[] = {[me = rank(), size = group().size()](const NcclLibrary& nccl,
                                                                                ncclComm_t comm, float* in,
                                                                                float* out, cudaStream_t s) {
      ncclResult_t result = nccl.group_start();
      for (int r = 0; r < size && result == ncclSuccess; ++r) {
        if (r == me) continue;
        result = nccl.send(in + r, 1, ncclFloat32, r, comm, s);
        if (result == ncclSuccess) result = nccl.recv(out + r, 1, ncclFloat32, r, comm, s);
      }
      return ended(nccl, result);
    }};
    all_->make_first_calls(w, to_each);
  }

  // NCCL requires that buffers are registered on all ranks or on none, and that they come from one allocator.
  void lend(const Waiting& w, std::span<const Tensor> buffers) override {
    const bool done = nccl_gave_all() && all_->use_in_place(buffers);
    const std::vector<int64_t> all = group().exchange(w, done);
    if (std::find(all.begin(), all.end(), 0) != all.end()) take_back();
  }
  void take_back() override {
    if (all_) all_->use_in_place({});
  }

  void all_gather(const Waiting& w, Tensor full, Tensor shard, Range piece, Stream& stream) override {
    const Tensor mine = shard.slice(piece);
    call(w, stream, [&](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t s) {
      const auto [type, count] = elements(mine);
      if (piece.size() == shard.numel()) return nccl.all_gather(mine.raw(), full.raw(), count, type, comm, s);
      // The pieces are not contiguous: direct messages between all pairs avoid a chain of broadcasts, one per
      // root.
      const auto place = [&](int r) { return full.slice(piece.shifted(r * shard.numel())).raw(); };
      if (place(rank()) != mine.raw())
        cuda_check(cudaMemcpyAsync(place(rank()), mine.raw(), size_t(mine.bytes()), cudaMemcpyDefault, s),
                   "cudaMemcpyAsync", device());
      ncclResult_t result = nccl.group_start();
      for (int r = 0; r < group().size() && result == ncclSuccess; ++r) {
        if (r == rank()) continue;
        result = nccl.send(mine.raw(), count, type, r, comm, s);
        if (result == ncclSuccess) result = nccl.recv(place(r), count, type, r, comm, s);
      }
      return ended(nccl, result);
    });
  }

  void reduce_scatter(const Waiting& w, Tensor shard, Tensor full, Range piece, Stream& stream) override {
    const Tensor mine = shard.slice(piece);
    call(w, stream, [&](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t s) {
      const auto [type, count] = elements(mine);
      if (piece.size() == shard.numel())
        return nccl.reduce_scatter(full.raw(), mine.raw(), count, type, reduction(w), comm, s);
      ncclResult_t result = nccl.group_start();
      for (int r = 0; r < group().size() && result == ncclSuccess; ++r) {
        void* part = full.slice(piece.shifted(r * shard.numel())).raw();
        result = nccl.reduce(part, r == rank() ? mine.raw() : nullptr, count, type, reduction(w), r, comm, s);
      }
      return ended(nccl, result);
    });
  }

  void all_reduce(const Waiting& w, Tensor t, Stream& stream) override {
    call(w, stream, [&](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t s) {
      const auto [type, count] = elements(t);
      return nccl.all_reduce(t.raw(), t.raw(), count, type, reduction(w), comm, s);
    });
  }

  void broadcast(const Waiting& w, Tensor t, int root, Stream& stream) override {
    call(w, stream, [&](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t s) {
      const auto [type, count] = elements(t);
      return nccl.broadcast(t.raw(), t.raw(), count, type, root, comm, s);
    });
  }

  void all_to_all(const Waiting& w, Tensor out, Tensor in, Range piece, Stream& stream) override {
    const int64_t block = in.numel() / group().size();
    call(w, stream, [&](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t s) {
      ncclResult_t result = nccl.group_start();
      for (int r = 0; r < group().size() && result == ncclSuccess; ++r) {
        const auto [type, count] = elements(in.slice(piece));
        result = nccl.send(in.slice(piece.shifted(r * block)).raw(), count, type, r, comm, s);
        if (result == ncclSuccess)
          result = nccl.recv(out.slice(piece.shifted(r * block)).raw(), count, type, r, comm, s);
      }
      return ended(nccl, result);
    });
  }

  void send(const Waiting& w, Tensor t, int to, Stream& stream) override {
    CudaQueue& queue = heard_by(stream);
    open_to(w, to, t.bytes());
    outgoing_[to]->send(w, t, queue);
  }
  void recv(const Waiting& w, Tensor t, int from, Stream& stream) override {
    CudaQueue& queue = heard_by(stream);
    open_from(w, from, t.bytes());
    incoming_[from]->recv(w, t, queue);
  }

  void open_to(const Waiting& w, int to, int64_t bytes) override {
    NcclChannel*& channel = outgoing_[to];
    if (!channel) {
      ncclUniqueId id = new_id(true, w);
      group().send(w, bytes_of(id), to);
      channel = &keep(std::make_unique<NcclChannel>(group(), w, NcclLink::Member{0, 2, device()}, id));
    }
    channel->make_room(bytes);
  }
  void open_from(const Waiting& w, int from, int64_t) override {
    NcclChannel*& channel = incoming_[from];
    if (channel) return;
    ncclUniqueId id{};
    group().recv(w, bytes_of(id), from);
    channel = &keep(std::make_unique<NcclChannel>(group(), w, NcclLink::Member{1, 2, device()}, id));
  }

 private:
  static Tensor bytes_of(ncclUniqueId& id) {
    return {&id, DType::uint8, {int64_t(sizeof id)}, MemoryKind::host};
  }

  ncclUniqueId new_id(bool make, const Waiting& w) {
    ncclUniqueId id{};
    if (!make) return id;
    const ncclResult_t result = nccl_.get_unique_id(&id);
    if (result != ncclSuccess)
      group().give_up(
          w,
          fmt::format(
              "{}: NCCL has no address for the connection: {}; set NCCL_SOCKET_IFNAME to an interface",
              describe(w), nccl_.get_error_string(result)),
          Exit::usage);
    return id;
  }

  static ncclResult_t ended(const NcclLibrary& nccl, ncclResult_t result) {
    const ncclResult_t end = nccl.group_end();
    return result == ncclSuccess ? end : result;
  }

  template <class Body>
  void call(const Waiting& w, Stream& stream, Body body) {
    CudaQueue& queue = heard_by(stream);
    const cudaStream_t s = queue.use();
    all_->enqueue(w, s, [&](const NcclLibrary& nccl, ncclComm_t comm) { return body(nccl, comm, s); });
  }

  const NcclLibrary& nccl_ = nccl_library();
  NcclLink* all_ = nullptr;  // set by meet()
  std::map<int, NcclChannel*> outgoing_, incoming_;
};

class NcclTransport final : public WatchedTransport<NcclGroup> {
 public:
  NcclTransport(Device device, bool registers) : WatchedTransport(device), registers_(registers) {}
  DeviceAllocator allocator() const override { return registers_ ? nccl_allocate : nullptr; }
  int64_t reserve(const RankGroup& group, int ranks) const override { return nccl_reserve(group, ranks); }

 private:
  const bool registers_;
};

}  // namespace

std::shared_ptr<DeviceTransport> nccl_transport(Device device, NcclUse use) {
  (void)nccl_library();  // throws if it cannot be used
  // NCCL reads these variables once, when the first communicator is made; values of the user stay.
  if (use.shared_gpus) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  // Ranks launch the calls of several communicators in the order of the program. Otherwise two ranks may
  // each wait in a call for which the other has no room.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  // Connects ranks, and allocates for it, when a communicator is made instead of in a step.
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  return std::make_shared<NcclTransport>(device, use.registers);
}

}  // namespace cleave::comm
