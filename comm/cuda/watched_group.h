// Common base of transports between GPUs: a watching thread checks their links. If a link fails, or the group
// is lost on the CPU, it aborts all links, and streams that wait for them throw the reason.
#pragma once
#include <mutex>

#include "comm/device_group.h"
#include "comm/watch.h"
#include "device/cuda/queue.h"

namespace cleave::comm {

class WatchedLink {
 public:
  virtual ~WatchedLink() = default;
  // Returns why the link failed, on the watching thread; empty without a problem.
  virtual std::string trouble() = 0;
  // Ends waits on the GPU; later calls throw the reason. Thread-safe; the first reason counts. The watching
  // thread calls it repeatedly.
  virtual void abort(const std::string& reason) = 0;
  // Releases resources of other ranks, before any link of the group is destroyed: these ranks may wait for
  // that in their destructors.
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
  // Takes ownership of the link and watches it until the group is destroyed.
  template <class Link>
  Link& keep(std::unique_ptr<Link> made) {
    Link& link = *made;
    std::lock_guard lock(mutex_);
    links_.push_back(std::move(made));
    return link;
  }
  // Queue of the stream; from now on it also throws losses of this group.
  CudaQueue& heard_by(Stream& stream);

 private:
  struct Loss;

  void look() override;

  const std::shared_ptr<Group> group_;
  const int rank_, device_;
  const std::shared_ptr<Watch> watch_;
  const std::shared_ptr<Loss> loss_;
  std::mutex mutex_;  // guards the members below; used by host and watching threads
  std::vector<std::unique_ptr<WatchedLink>> links_;
  std::string given_up_;
};

// Transport with one watching thread for all its groups.
template <class DeviceGroupOf>
class WatchedTransport : public DeviceTransport {
 public:
  explicit WatchedTransport(Device device)
      : device_(device.index), watch_(std::make_shared<Watch>(std::chrono::milliseconds(20))) {}

  std::unique_ptr<DeviceGroup> over(std::shared_ptr<Group> group, int rank) override {
    return std::make_unique<DeviceGroupOf>(std::move(group), rank, device_, watch_);
  }

 private:
  const int device_;
  const std::shared_ptr<Watch> watch_;
};

}  // namespace cleave::comm
