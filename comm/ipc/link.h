// Ranks whose GPUs read each other's segments: all of a group, or a sender and a receiver. Takes the steps of
// comm/ipc/steps.h as operations of a stream; the host waits for nothing. A call has a deadline from the
// moment the GPU comes to it, and the report names the ranks that have not come.
#pragma once
#include "comm/cuda/flights.h"
#include "comm/cuda/watched_group.h"
#include "comm/ipc/segment.h"

namespace cleave::comm {

class IpcLink final : public WatchedLink {
 public:
  // Collective over the group. Error(usage), on every rank, where one of them cannot open what another made.
  static std::unique_ptr<IpcLink> among(Group& group, const Waiting& w, int rank, int device);
  // For messages of at most room(bytes) from one rank to another, who calls `from` with the same number. The
  // sender does not wait. Error(usage) where the receiver cannot open what the sender made.
  static std::unique_ptr<IpcLink> to(Group& group, const Waiting& w, int peer, int device, int64_t bytes);
  static std::unique_ptr<IpcLink> from(Group& group, const Waiting& w, int peer, int device, int64_t bytes);
  static int64_t room(int64_t bytes);

  ~IpcLink() override;
  IpcLink(const IpcLink&) = delete;
  IpcLink& operator=(const IpcLink&) = delete;

  IpcStepBuilder& planner() { return planner_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  // Enqueues steps that planner() just made. Error(rank_lost) when the link was given up.
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
  cudaEvent_t last_ = nullptr;  // the end of the last call, on whichever stream
  bool hung_up_ = false;
  std::atomic<uint32_t> planned_ = 0;  // the last chunk that was enqueued
  Flights flights_;
  std::mutex mutex_;  // of what follows
  std::string given_up_;
};

}  // namespace cleave::comm
