// What transports between GPUs have in common: links whose calls nobody on the host waits for. A watching
// thread looks at them; when one is in trouble or the group is lost on the CPU's side, all are ended, and the
// streams that waited for them throw the reason.
#pragma once
#include <mutex>

#include "comm/cuda/watch.h"
#include "comm/device_group.h"
#include "device/cuda/queue.h"

namespace cleave::comm {

class WatchedLink {
 public:
  virtual ~WatchedLink() = default;
  // Says, on the watching thread, why the link cannot go on; empty while all is well.
  virtual std::string trouble() = 0;
  // Ends what waits on the GPU; later calls throw the reason. Safe from any thread; the first reason counts.
  // The watching thread calls it again and again.
  virtual void abort(const std::string& reason) = 0;
  // Before any link of the group ends: lets go of what belongs to other ranks, who may wait for that at their
  // end.
  virtual void hang_up() {}
};

class WatchedGroup : public DeviceGroup, private Watched {
 public:
  ~WatchedGroup() override;

 protected:
  WatchedGroup(std::shared_ptr<Group> group, int rank, int device, std::shared_ptr<Watch> watch);

  Group& group() const { return *group_; }
  int rank() const { return rank_; }
  int device() const { return device_; }
  // The link is looked after from now on, until the group ends.
  template <class Link>
  Link& keep(std::unique_ptr<Link> made) {
    Link& link = *made;
    std::lock_guard lock(mutex_);
    links_.push_back(std::move(made));
    return link;
  }
  // The stream's queue, which from now on also throws what was lost here.
  CudaQueue& heard_by(Stream& stream);

 private:
  struct Loss;

  void look() override;

  const std::shared_ptr<Group> group_;
  const int rank_, device_;
  const std::shared_ptr<Watch> watch_;
  const std::shared_ptr<Loss> loss_;
  std::mutex mutex_;  // of what follows, between the host's thread and the watching one
  std::vector<std::unique_ptr<WatchedLink>> links_;
  std::string given_up_;
};

// A transport whose groups one thread watches.
template <class DeviceGroupOf>
class WatchedTransport : public DeviceTransport {
 public:
  explicit WatchedTransport(Device device)
      : device_(device.index), watch_(std::make_shared<Watch>(device.index)) {}

  std::unique_ptr<DeviceGroup> over(std::shared_ptr<Group> group, int rank) override {
    return std::make_unique<DeviceGroupOf>(std::move(group), rank, device_, watch_);
  }

 private:
  const int device_;
  const std::shared_ptr<Watch> watch_;
};

}  // namespace cleave::comm
