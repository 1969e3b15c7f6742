// A pipeline's messages from GPU to GPU.
#pragma once
#include "comm/nccl/link.h"
#include "device/cuda/queue.h"

namespace cleave::comm {

// Messages of one direction between two ranks, over a communicator of those two alone, so that a message that
// waits holds up nothing else. The sender keeps a copy on a stream of its own: a channel holds one message,
// as pipeline schedules are proved for.
class NcclChannel final : public WatchedLink {
 public:
  // Collective over the two: the sender is rank 0 of `member`, the receiver rank 1. Errors are NcclLink's.
  NcclChannel(Group& group, const Waiting& w, NcclLink::Member member, const ncclUniqueId& id);
  ~NcclChannel() override;
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  std::string trouble() override { return link_.trouble(); }
  void abort(const std::string& reason) override { link_.abort(reason); }
  // Of the sender, for messages of at most so many bytes; what was smaller is kept.
  void make_room(int64_t bytes);
  // In the order of the queue; what was sent may be overwritten by its later work.
  void send(const Waiting& w, const Tensor& t, CudaQueue& queue);
  void recv(const Waiting& w, const Tensor& t, CudaQueue& queue);

 private:
  void check(cudaError_t error, const char* call) const;

  int device_;
  NcclLink link_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t copied_ = nullptr, sent_ = nullptr;
  std::vector<void*> buffers_;
  int64_t room_ = 0;
};

}  // namespace cleave::comm
