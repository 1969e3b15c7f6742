#include <cstdlib>
#include <map>

#include "comm/nccl/channel.h"
#include "comm/nccl/watch.h"
#include "device/cuda/queue.h"

namespace cleave {
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
    case DType::uint8:
    case DType::uint16:  // is moved, never summed
      break;
  }
  return {ncclUint8, size_t(t.bytes())};
}

// What a group's calls leave behind; outlives the group, because streams ask for it.
struct Loss {
  std::mutex mutex;
  std::string reason;

  void set(const std::string& text) {
    std::lock_guard lock(mutex);
    if (reason.empty()) reason = text;
  }
  void rethrow() {
    std::lock_guard lock(mutex);
    require(reason.empty(), Exit::rank_lost, "{}", reason);
  }
};

class NcclGroup final : public DeviceGroup, private Watched {
 public:
  NcclGroup(std::shared_ptr<Group> group, int rank, int device, std::shared_ptr<Watch> watch)
      : group_(std::move(group)), rank_(rank), device_(device), watch_(std::move(watch)) {
    watch_->add(this);
  }
  ~NcclGroup() override { watch_->remove(this); }

  void meet(const Waiting& w) override {
    ncclUniqueId id = new_id(rank_ == 0, w);
    if (group_->size() > 1) group_->broadcast(w, bytes_of(id), 0);
    auto made = std::make_unique<NcclLink>(*group_, w, NcclLink::Place{rank_, group_->size(), device_}, id);
    std::lock_guard lock(mutex_);
    all_ = std::move(made);
  }

  void all_gather(const Waiting& w, Tensor full, Tensor shard, Range piece, Stream& stream) override {
    const Tensor mine = shard.slice(piece);
    call(w, stream, [&](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t s) {
      const auto [type, count] = elements(mine);
      if (piece.size() == shard.numel()) return nccl.all_gather(mine.raw(), full.raw(), count, type, comm, s);
      ncclResult_t result = nccl.group_start();
      for (int r = 0; r < group_->size() && result == ncclSuccess; ++r) {
        void* there = full.slice(piece.shifted(r * shard.numel())).raw();
        result = nccl.broadcast(r == rank_ ? mine.raw() : there, there, count, type, r, comm, s);
      }
      return ended(nccl, result);
    });
  }

  void reduce_scatter(const Waiting& w, Tensor shard, Tensor full, Range piece, Stream& stream) override {
    const Tensor mine = shard.slice(piece);
    call(w, stream, [&](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t s) {
      const auto [type, count] = elements(mine);
      if (piece.size() == shard.numel())
        return nccl.reduce_scatter(full.raw(), mine.raw(), count, type, ncclSum, comm, s);
      ncclResult_t result = nccl.group_start();
      for (int r = 0; r < group_->size() && result == ncclSuccess; ++r) {
        void* part = full.slice(piece.shifted(r * shard.numel())).raw();
        result = nccl.reduce(part, r == rank_ ? mine.raw() : nullptr, count, type, ncclSum, r, comm, s);
      }
      return ended(nccl, result);
    });
  }

  void all_reduce(const Waiting& w, Tensor t, Stream& stream) override {
    call(w, stream, [&](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t s) {
      const auto [type, count] = elements(t);
      return nccl.all_reduce(t.raw(), t.raw(), count, type, ncclSum, comm, s);
    });
  }

  void broadcast(const Waiting& w, Tensor t, int root, Stream& stream) override {
    call(w, stream, [&](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t s) {
      const auto [type, count] = elements(t);
      return nccl.broadcast(t.raw(), t.raw(), count, type, root, comm, s);
    });
  }

  void all_to_all(const Waiting& w, Tensor out, Tensor in, Range piece, Stream& stream) override {
    const int64_t block = in.numel() / group_->size();
    call(w, stream, [&](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t s) {
      ncclResult_t result = nccl.group_start();
      for (int r = 0; r < group_->size() && result == ncclSuccess; ++r) {
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
    NcclChannel& channel = open(outgoing_, to, [&] {
      ncclUniqueId id = new_id(true, w);
      group_->send(w, bytes_of(id), to);
      return std::make_unique<NcclChannel>(*group_, w, NcclLink::Place{0, 2, device_}, id);
    });
    channel.send(w, t, queue);
  }

  void recv(const Waiting& w, Tensor t, int from, Stream& stream) override {
    CudaQueue& queue = heard_by(stream);
    NcclChannel& channel = open(incoming_, from, [&] {
      ncclUniqueId id{};
      group_->recv(w, bytes_of(id), from);
      return std::make_unique<NcclChannel>(*group_, w, NcclLink::Place{1, 2, device_}, id);
    });
    channel.recv(w, t, queue);
  }

 private:
  using Channels = std::map<int, std::unique_ptr<NcclChannel>>;

  static Tensor bytes_of(ncclUniqueId& id) {
    return {&id, DType::uint8, {int64_t(sizeof id)}, MemoryKind::host};
  }

  ncclUniqueId new_id(bool make, const Waiting& w) {
    ncclUniqueId id{};
    if (!make) return id;
    const ncclResult_t result = nccl_.get_unique_id(&id);
    if (result != ncclSuccess)
      group_->give_up(
          w,
          fmt::format("{}: NCCL has no address to meet at: {}; NCCL_SOCKET_IFNAME names an interface",
                      describe(w), nccl_.get_error_string(result)),
          Exit::usage);
    return id;
  }

  static ncclResult_t ended(const NcclLibrary& nccl, ncclResult_t result) {
    const ncclResult_t end = nccl.group_end();
    return result == ncclSuccess ? end : result;
  }

  // The stream's queue, which from now on also throws what was lost here.
  CudaQueue& heard_by(Stream& stream) {
    CudaQueue& queue = cuda_queue(stream);
    queue.also_rethrow(loss_.get(), [loss = loss_] { loss->rethrow(); });
    return queue;
  }

  template <class Body>
  void call(const Waiting& w, Stream& stream, Body body) {
    CudaQueue& queue = heard_by(stream);
    const cudaStream_t s = queue.use();
    all_->enqueue(w, s, [&](const NcclLibrary& nccl, ncclComm_t comm) { return body(nccl, comm, s); });
  }

  template <class Make>
  NcclChannel& open(Channels& channels, int peer, Make make) {
    if (const auto found = channels.find(peer); found != channels.end()) return *found->second;
    auto made = make();
    std::lock_guard lock(mutex_);
    return *(channels[peer] = std::move(made));
  }

  void look() override {
    std::lock_guard lock(mutex_);
    if (given_up_) return;
    std::vector<NcclLink*> links;
    if (all_) links.push_back(all_.get());
    for (const Channels* channels : {&outgoing_, &incoming_})
      for (const auto& [peer, channel] : *channels) links.push_back(&channel->link());
    std::string reason = group_->lost();
    const bool told = !reason.empty();
    for (NcclLink* link : links)
      if (reason.empty()) reason = link->trouble();
    if (reason.empty()) return;
    given_up_ = true;
    loss_->set(told ? fmt::format("group '{}' was given up: {}", group_->name(), reason) : reason);
    for (NcclLink* link : links) link->abort(reason);
    if (told) return;
    try {
      group_->abort(reason);
    } catch (const std::exception&) {  // the others are out of reach; they will miss this rank
    }
  }

  const NcclLibrary& nccl_ = nccl_library();
  const std::shared_ptr<Group> group_;
  const int rank_, device_;
  const std::shared_ptr<Watch> watch_;
  const std::shared_ptr<Loss> loss_ = std::make_shared<Loss>();
  std::mutex mutex_;  // of what follows, between the host's thread and the watching one
  std::unique_ptr<NcclLink> all_;
  Channels outgoing_, incoming_;
  bool given_up_ = false;
};

class NcclTransport final : public DeviceTransport {
 public:
  explicit NcclTransport(Device device)
      : device_(device.index), watch_(std::make_shared<Watch>(device.index)) {}

  std::unique_ptr<DeviceGroup> over(std::shared_ptr<Group> group, int rank) override {
    return std::make_unique<NcclGroup>(std::move(group), rank, device_, watch_);
  }

 private:
  const int device_;
  const std::shared_ptr<Watch> watch_;
};

}  // namespace

std::shared_ptr<DeviceTransport> nccl_transport(Device device, bool shared_gpus) {
  nccl_library();
  // NCCL reads it once, when the first communicator is made.
  if (shared_gpus) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  return std::make_shared<NcclTransport>(device);
}

}  // namespace cleave
