// One NCCL communicator; its calls are watched on the GPU. A call's deadline starts when the GPU reaches it,
// just as CPU transports start it when a call is first in line.
//
// The communicator is a blocking one: its calls return when their work is on the stream, without the thread
// and the queries per call of non-blocking ones. Calls that wait for other ranks (creation, first calls,
// closing) run on a separate thread, which stays behind if these ranks are lost.
#pragma once
#include <functional>
#include <future>
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

  // Collective over the ranks with this id. Throws Error(rank_lost) on all ranks at the group's deadline or
  // when the group is lost, and Error(usage) if NCCL fails.
  NcclLink(Group& group, const Waiting& w, Member member, const ncclUniqueId& id);
  ~NcclLink() override;
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  using Body = std::function<ncclResult_t(const NcclLibrary&, ncclComm_t)>;
  // Enqueues the NCCL calls of `body` on `stream`. Throws Error(rank_lost) if the link was aborted.
  void enqueue(const Waiting& w, cudaStream_t stream, const Body& body);

  // Calls with one element per rank; `in` and `out` hold one per rank of the communicator.
  using FirstCall =
      std::function<ncclResult_t(const NcclLibrary&, ncclComm_t, float* in, float* out, cudaStream_t)>;
  // Makes these calls and waits for them. NCCL allocates at the first call of a kind and at the first message
  // to a rank, which would wait for whole GPUs in a step.
  void make_first_calls(const Waiting& w, std::span<const FirstCall> calls);

  // Registers exactly this memory (comm/nccl/nccl_memory.h), so that NCCL can access it in place if its
  // transports support that. On failure, prints one line to stderr and returns false; a part may then be
  // registered.
  bool use_in_place(std::span<const Tensor> buffers);

  // Waits up to a few seconds until enqueued work is done; does not wait if the link or the group was
  // aborted. A receiver may reach a message long after the sender has finished its own work.
  void finish();

  std::string trouble() override;
  void abort(const std::string& reason) override;

 private:
  // The communicator during a call that launches work; throws if the link was aborted.
  struct Entered {
    Entered(NcclLink& link, const Waiting& w);
    ~Entered();
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;
    NcclLink& link;
    ncclComm_t comm = nullptr;
  };
  // Runs a call of NCCL on a separate thread.
  static std::future<ncclResult_t> aside(std::function<ncclResult_t()> call);
  // Waits for that call and returns its result. Throws Error(rank_lost) at the group's deadline or loss.
  ncclResult_t result_of(const Waiting& w, std::future<ncclResult_t> call, const char* doing);
  void wait_until(const Waiting& w, const char* doing, const std::function<bool()>& done);
  ncclResult_t settled(ncclComm_t comm, ncclResult_t result) const;
  void require_success(const Waiting& w, ncclResult_t result, const char* doing);
  std::string explain(ncclResult_t result);
  void throw_if_given_up(const Waiting& w);

  const NcclLibrary& nccl_;
  Group& group_;
  const Member member_;
  std::mutex mutex_;  // guards the members below; not held by calls that launch work
  ncclComm_t comm_ = nullptr;
  bool inside_ = false;  // a call that launches work is running
  std::string given_up_;
  Clock::time_point given_up_at_;
  std::future<ncclResult_t> aborted_;
  Flights flights_;
  std::vector<void*> registered_;
};

}  // namespace cleave::comm
