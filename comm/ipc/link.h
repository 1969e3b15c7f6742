// Link of ranks with GPUs that read each other's segments: all ranks of a group, or a sender and a receiver.
// Enqueues the steps of comm/ipc/collective_steps.h on a stream; the host never waits. A call's deadline
// starts when the GPU reaches it, and the report names the missing ranks.
#pragma once
#include "comm/cuda/flights.h"
#include "comm/cuda/watched_group.h"
#include "comm/ipc/segment.h"

namespace cleave::comm {

class IpcLink final : public WatchedLink {
 public:
  // Collective over the group. Throws Error(usage) on every rank if one rank cannot open the memory of
  // another.
  static std::unique_ptr<IpcLink> among(Group& group, const Waiting& w, int rank, int device);
  // Link for messages of at most room(bytes) from one rank to another; the receiver calls `from` with the
  // same `bytes`. The sender does not wait. Throws Error(usage) if the receiver cannot open the sender's
  // memory.
  static std::unique_ptr<IpcLink> to(Group& group, const Waiting& w, int peer, int device, int64_t bytes);
  static std::unique_ptr<IpcLink> from(Group& group, const Waiting& w, int peer, int device, int64_t bytes);
  static int64_t room(int64_t bytes);

  ~IpcLink() override;
  IpcLink(const IpcLink&) = delete;
  IpcLink& operator=(const IpcLink&) = delete;

  IpcStepBuilder& planner() { return planner_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  // Enqueues steps that planner() just built. Throws Error(rank_lost) if the link was aborted.
  void run(const Waiting& w, const IpcSteps& steps, const Tensor& in, const Tensor& out, CudaQueue& queue);

  std::string trouble() override;
  void abort(const std::string& reason) override;
  void hang_up() override;

 private:
  struct Shape {
    std::vector<int> ranks;  // of the group, by index in the link
    int index = 0, device = 0;
    int64_t slot_bytes = 0;
    int slots = 1;
  };
  struct Offer;

  IpcLink(Group& group, Shape shape, IpcWords words, IpcMemory own);
  void open(int index, const cudaIpcMemHandle_t& handle);
  Offer offer() const;
  int size() const { return int(shape_.ranks.size()); }

  void take(const IpcStep& step, const Tensor& in, const Tensor& out, Reduction by, cudaStream_t stream);
  void check(cudaError_t error, const char* call) const;
  void throw_if_given_up(const Waiting& w);
  std::string disagreement_with_others() const;
  std::string late(const Waiting& w, const Flights::Flight& flight) const;
  void release();
  bool stream_is_done(Clock::time_point until);
  bool others_have_closed(Clock::time_point until);

  Group& group_;
  const Shape shape_;
  const int64_t slot_bytes_;
  IpcWords words_;
  IpcMemory own_;
  std::vector<IpcMemory> opened_;
  std::vector<std::byte*> segments_;  // by index
  IpcStepBuilder planner_;
  cudaEvent_t last_ = nullptr;  // end of the last call, on any stream
  bool hung_up_ = false;
  std::atomic<uint32_t> planned_ = 0;  // last enqueued chunk
  Flights flights_;
  std::mutex mutex_;  // guards given_up_
  std::string given_up_;
};

}  // namespace cleave::comm
