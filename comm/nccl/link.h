// One NCCL communicator: made without blocking, its calls watched on the GPU. A call has a deadline from the
// moment the GPU comes to it, as calls of the CPU's transports have from the moment they are first in line.
#pragma once
#include <functional>
#include <mutex>
#include <span>

#include "comm/cuda/flights.h"
#include "comm/cuda/watched_group.h"
#include "comm/nccl/library.h"

namespace cleave::comm {

class NcclLink final : public WatchedLink {
 public:
  struct Member {
    int rank = 0, size = 1, device = 0;
  };

  // Collective over the ranks that are given this id. Ends by the group's deadline, or as soon as the group
  // is lost: Error(rank_lost) for all its ranks. Error(usage) when NCCL refuses.
  NcclLink(Group& group, const Waiting& w, Member member, const ncclUniqueId& id);
  ~NcclLink() override;
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  using Body = std::function<ncclResult_t(const NcclLibrary&, ncclComm_t)>;
  // Enqueues what body calls on `stream`. Error(rank_lost) when the link was given up.
  void enqueue(const Waiting& w, cudaStream_t stream, const Body& body);

  // Registers this memory (comm/nccl/memory.h) and no other, so that NCCL may read and write it in place,
  // where its transports can. False, and one line on stderr, where it refuses: then some may be registered.
  bool use_in_place(std::span<const Tensor> buffers);

  // Waits until what was enqueued is done, for a few seconds, and not where the link or the group was given
  // up: the receiver of a message may come to it long after its sender has nothing else to do.
  void finish();

  std::string trouble() override;
  void abort(const std::string& reason) override;

 private:
  void settle(const Waiting& w, ncclResult_t result, const char* doing);
  ncclResult_t state();
  ncclResult_t settled(ncclResult_t result, Clock::time_point until) const;
  std::string explain(ncclResult_t result);
  void throw_if_given_up(const Waiting& w);

  const NcclLibrary& nccl_;
  Group& group_;
  const Member member_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  std::string given_up_;
  Flights flights_;
  std::vector<void*> registered_;
};

}  // namespace cleave::comm
