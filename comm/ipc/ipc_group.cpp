#include <map>

#include "comm/ipc/ipc.h"
#include "comm/ipc/link.h"

namespace cleave::comm {
namespace {

class IpcGroup final : public WatchedGroup {
 public:
  IpcGroup(std::shared_ptr<Group> ranks, int rank, int device, std::shared_ptr<Watch> watch)
      : WatchedGroup(std::move(ranks), rank, device, std::move(watch)) {}

  void meet(const Waiting& w) override { all_ = &keep(IpcLink::among(group(), w, rank(), device())); }

  void all_gather(const Waiting& w, Tensor full, Tensor shard, Range piece, Stream& stream) override {
    run(w, all_->planner().all_gather(size_of(full.dtype()), shard.numel(), piece), shard, full, stream);
  }
  void reduce_scatter(const Waiting& w, Tensor shard, Tensor full, Range piece, Stream& stream) override {
    run(w, all_->planner().reduce_scatter(size_of(full.dtype()), shard.numel(), piece), full, shard, stream);
  }
  void all_reduce(const Waiting& w, Tensor t, Stream& stream) override {
    run(w, all_->planner().all_reduce(size_of(t.dtype()), t.numel()), t, t, stream);
  }
  void broadcast(const Waiting& w, Tensor t, int root, Stream& stream) override {
    run(w, all_->planner().broadcast(size_of(t.dtype()), t.numel(), root), t, t, stream);
  }
  void all_to_all(const Waiting& w, Tensor out, Tensor in, Range piece, Stream& stream) override {
    const int64_t block = in.numel() / group().size();
    run(w, all_->planner().all_to_all(size_of(in.dtype()), block, piece), in, out, stream);
  }

  void send(const Waiting& w, Tensor t, int to, Stream& stream) override {
    CudaQueue& queue = heard_by(stream);
    open_to(w, to, t.bytes());
    IpcLink& link = *outgoing_[to];
    link.run(w, link.planner().send(t.bytes()), t, t, queue);
  }
  void recv(const Waiting& w, Tensor t, int from, Stream& stream) override {
    CudaQueue& queue = heard_by(stream);
    open_from(w, from, t.bytes());
    IpcLink& link = *incoming_[from];
    link.run(w, link.planner().recv(t.bytes()), t, t, queue);
  }

  // A message larger than all before opens a new link. Both sides know its size, so both open it.
  void open_to(const Waiting& w, int to, int64_t bytes) override {
    IpcLink*& link = outgoing_[to];
    if (!link || bytes > link->slot_bytes()) link = &keep(IpcLink::to(group(), w, to, device(), bytes));
  }
  void open_from(const Waiting& w, int from, int64_t bytes) override {
    IpcLink*& link = incoming_[from];
    if (!link || bytes > link->slot_bytes()) link = &keep(IpcLink::from(group(), w, from, device(), bytes));
  }

 private:
  void run(const Waiting& w, const IpcSteps& steps, const Tensor& in, const Tensor& out, Stream& stream) {
    all_->run(w, steps, in, out, heard_by(stream));
  }

  IpcLink* all_ = nullptr;  // set by meet()
  std::map<int, IpcLink*> outgoing_, incoming_;
};

}  // namespace

std::shared_ptr<DeviceTransport> ipc_transport(Device device) {
  return std::make_shared<WatchedTransport<IpcGroup>>(device);
}

}  // namespace cleave::comm
