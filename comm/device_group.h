// What moves tensors from GPU to GPU for a group, in place of the way through pinned memory and a transport
// of the CPU (relay.h). A group still needs its transport of the CPU: for the host's own values, to agree on
// things, and to tell why it ended.
#pragma once
#include <span>

#include "comm/group.h"
#include "device/memory_block.h"

namespace cleave::comm {

// One rank's part. Calls are enqueued on CUDA streams; their tensors are in the memory of that stream's GPU.
// Where a call was lost, synchronize() of its stream throws Error(rank_lost) with the reason.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;

  // Collective over the group, on the host's thread, before the first collective; w is first in line.
  // Error(rank_lost) at the group's deadline.
  virtual void meet(const Waiting& w) = 0;

  // Arguments are checked and not empty; calls are made in the same order on every rank.
  virtual void all_gather(const Waiting& w, Tensor full, Tensor shard, Range piece, Stream& stream) = 0;
  virtual void reduce_scatter(const Waiting& w, Tensor shard, Tensor full, Range piece, Stream& stream) = 0;
  virtual void all_reduce(const Waiting& w, Tensor t, Stream& stream) = 0;
  virtual void broadcast(const Waiting& w, Tensor t, int root, Stream& stream) = 0;
  virtual void all_to_all(const Waiting& w, Tensor out, Tensor in, Range piece, Stream& stream) = 0;
  // The first call of a pair and direction meets the other rank on the host; from then on a send waits for
  // nothing but its own last message, and a receive waits on the GPU. w is first in line of its pair.
  virtual void send(const Waiting& w, Tensor t, int to, Stream& stream) = 0;
  virtual void recv(const Waiting& w, Tensor t, int from, Stream& stream) = 0;
  // That meeting alone, for messages of at most `bytes`: both ranks of the pair make it.
  virtual void open_to(const Waiting& w, int to, int64_t bytes) = 0;
  virtual void open_from(const Waiting& w, int from, int64_t bytes) = 0;

  // Collective, after meet(): memory from the transport's allocator that collectives will often use, until it
  // is taken back, which is before it is freed.
  virtual void lend(const Waiting&, std::span<const Tensor>) {}
  virtual void take_back() {}
};

class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;
  virtual std::unique_ptr<DeviceGroup> over(std::shared_ptr<Group> group, int rank) = 0;
  // Of memory that its groups can be lent; none: they make no use of that. All ranks have one, or none has.
  virtual DeviceAllocator allocator() const { return nullptr; }
};

// What a group with a transport of the CPU can do beyond its collectives: Communicator::transport().
class TransportAccess {
 public:
  // From now on tensors in the memory of a GPU take this transport in the group, and in those that are split
  // from it.
  virtual void use(std::shared_ptr<DeviceTransport> transport) = 0;
  // Collective: the same, after the ranks have met over it. Where they cannot (Error(usage)), the group stays
  // as it was and the reason is returned; empty when all is well.
  virtual std::string try_to_use(std::shared_ptr<DeviceTransport> transport) = 0;

  // Collective: what the first collective over GPUs would do before it moves anything. That allocates and
  // maps, which waits for whole GPUs, so it belongs before a step. Nothing where no GPUs are connected.
  virtual void open() = 0;
  // The same for messages of at most `bytes` from one rank to another, which both call, and in an order that
  // all ranks have in common.
  virtual void open(int from, int to, int64_t bytes) = 0;

  // Where memory comes from that is lent to the GPUs' transport; none: there is nothing to lend.
  virtual DeviceAllocator allocator() const = 0;
  // Collective: a hint that collectives of the group will often use this memory, until it is taken back: when
  // the streams that used it are done, and before it is freed.
  virtual void lend(std::vector<Tensor> buffers) = 0;
  virtual void take_back() = 0;

  // Collective: everybody's `mine`, by rank. Not counted.
  virtual std::vector<int64_t> exchange(int64_t mine, const std::string& what) = 0;

 protected:
  ~TransportAccess() = default;
};

}  // namespace cleave::comm
