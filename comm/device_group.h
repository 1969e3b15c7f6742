// Interface of transports that move tensors directly from GPU to GPU, instead of through pinned memory and a
// CPU transport (relay.h). A group also needs its CPU transport: for host values, agreement, and error
// reports.
#pragma once
#include <span>

#include "comm/group.h"
#include "device/memory_block.h"

namespace cleave {
struct RankGroup;
}

namespace cleave::comm {

// One rank's part. Calls are enqueued on CUDA streams; their tensors are in memory of the stream's GPU. If a
// call is lost, synchronize() of its stream throws Error(rank_lost) with the reason.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;

  // Collective over the group, on the host thread, before the first collective; w is first in line. Throws
  // Error(rank_lost) at the group's deadline.
  virtual void meet(const Waiting& w) = 0;

  // Collective, once after meet(), if the group exchanges messages between all pairs: all_to_all and
  // collectives in pieces. Throws as meet().
  virtual void meet_pairs(const Waiting&) {}

  // Arguments are checked and not empty. All ranks make calls in the same order.
  virtual void all_gather(const Waiting& w, Tensor full, Tensor shard, Range piece, Stream& stream) = 0;
  virtual void reduce_scatter(const Waiting& w, Tensor shard, Tensor full, Range piece, Stream& stream) = 0;
  virtual void all_reduce(const Waiting& w, Tensor t, Stream& stream) = 0;
  virtual void broadcast(const Waiting& w, Tensor t, int root, Stream& stream) = 0;
  virtual void all_to_all(const Waiting& w, Tensor out, Tensor in, Range piece, Stream& stream) = 0;
  // The first call of a pair and direction meets the other rank on the host. Later, a send waits only for its
  // own previous message, and a receive waits on the GPU. w is first in line of its pair.
  virtual void send(const Waiting& w, Tensor t, int to, Stream& stream) = 0;
  virtual void recv(const Waiting& w, Tensor t, int from, Stream& stream) = 0;
  // Only the meeting of the pair, for messages of at most `bytes`; both ranks call it.
  virtual void open_to(const Waiting& w, int to, int64_t bytes) = 0;
  virtual void open_from(const Waiting& w, int from, int64_t bytes) = 0;

  // Collective, after meet(): registers memory from the transport's allocator that collectives use often.
  // take_back() ends this before the memory is freed.
  virtual void lend(const Waiting&, std::span<const Tensor>) {}
  virtual void take_back() {}
};

class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;
  virtual std::unique_ptr<DeviceGroup> over(std::shared_ptr<Group> group, int rank) = 0;
  // Allocator of memory that groups register; null if unused. All ranks have one or none has.
  virtual DeviceAllocator allocator() const { return nullptr; }
  // Returns the bytes of this rank's GPU that a group takes outside of the memory plan, if they are many.
  virtual int64_t reserve(const RankGroup&, int /*ranks*/) const { return 0; }
};

// Operations of a group with a CPU transport beyond collectives: Communicator::transport().
class TransportAccess {
 public:
  // Uses this transport for GPU tensors from now on, in this group and in later splits of it.
  virtual void use(std::shared_ptr<DeviceTransport> transport) = 0;
  // Collective: use() after a meeting of all ranks. If the meeting throws Error(usage), keeps the group
  // unchanged and returns the reason; otherwise returns an empty string.
  virtual std::string try_to_use(std::shared_ptr<DeviceTransport> transport) = 0;

  // Collective: does the setup of the first collective between GPUs, and with `pairs` that of all_to_all and
  // of collectives in pieces. Setup allocates and maps memory, which waits for whole GPUs, so call it before
  // a step. No effect without connected GPUs.
  virtual void open(bool pairs) = 0;
  // Setup for messages of at most `bytes` from one rank to another. Both ranks call it, in an order
  // that all ranks share.
  virtual void open(int from, int to, int64_t bytes) = 0;

  // As DeviceTransport::reserve; 0 without a transport.
  virtual int64_t reserve(const RankGroup& group, int ranks) const = 0;

  // Allocator of memory to register; null if the transport has no use for it.
  virtual DeviceAllocator allocator() const = 0;
  // Collective: hint that collectives use this memory often. take_back() ends this; call it when the streams
  // that used the memory are done, and before the memory is freed.
  virtual void lend(std::vector<Tensor> buffers) = 0;
  virtual void take_back() = 0;

  // Collective: returns `mine` of all ranks, by rank. Not counted in bytes().
  virtual std::vector<int64_t> exchange(int64_t mine, const std::string& what) = 0;
  // Collective: returns the values of all ranks, one after the other; equally many on each. Waits for the
  // ranks on the calling thread. Not counted in bytes().
  virtual std::vector<int64_t> exchange(std::span<const int64_t> mine, const std::string& what) = 0;
  // Record of this rank's calls; null if they are not recorded.
  virtual const FlightRing* flights() const = 0;

 protected:
  ~TransportAccess() = default;
};

}  // namespace cleave::comm
