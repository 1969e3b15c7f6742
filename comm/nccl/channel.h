// Pipeline messages from GPU to GPU.
#pragma once
#include "comm/nccl/link.h"
#include "device/cuda/queue.h"

namespace cleave::comm {

// Messages in one direction between two ranks, over a separate communicator of these two, so that a waiting
// message blocks nothing else. The sender copies the message and sends it on a separate stream: a channel
// holds one message. Pipeline schedules are proved for this capacity.
class NcclChannel final : public WatchedLink {
 public:
  // Collective over both ranks: the sender is rank 0 of `member`, the receiver rank 1. Throws the errors of
  // NcclLink.
  NcclChannel(Group& group, const Waiting& w, NcclLink::Member member, const ncclUniqueId& id);
  ~NcclChannel() override;
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  std::string trouble() override { return link_.trouble(); }
  void abort(const std::string& reason) override { link_.abort(reason); }
  // Prepares the sender for messages of at most `bytes`; keeps smaller buffers.
  void make_room(int64_t bytes);
  // Enqueued on the queue; later work of the queue may overwrite a sent tensor.
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
