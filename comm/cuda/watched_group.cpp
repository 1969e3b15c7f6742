#include "comm/cuda/watched_group.h"

namespace cleave::comm {

// Loss of the group, for streams with its calls; outlives the group.
struct WatchedGroup::Loss {
  std::mutex mutex;
  std::string reason;

  void set(const std::string& text) {
    std::lock_guard lock(mutex);
    if (reason.empty()) reason = text;
  }
  void rethrow() {
    std::lock_guard lock(mutex);
    require(reason.empty(), Exit::rank_lost, "{}", reason);
  }
};

WatchedGroup::WatchedGroup(std::shared_ptr<Group> group, int rank, int device, std::shared_ptr<Watch> watch)
    : group_(std::move(group)),
      rank_(rank),
      device_(device),
      watch_(std::move(watch)),
      loss_(std::make_shared<Loss>()) {
  watch_->add(this);
}

WatchedGroup::~WatchedGroup() {
  watch_->remove(this);
  for (const auto& link : links_) link->hang_up();
  while (!links_.empty()) links_.pop_back();  // in reverse order of creation
}

CudaQueue& WatchedGroup::heard_by(Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  queue.also_rethrow(loss_.get(), [loss = loss_] { loss->rethrow(); });
  return queue;
}

void WatchedGroup::look() {
  std::lock_guard lock(mutex_);
  const bool again = !given_up_.empty();
  bool told = false;
  if (!again) {
    given_up_ = group_->lost();
    told = !given_up_.empty();
    for (const auto& link : links_)
      if (given_up_.empty()) given_up_ = link->trouble();
    if (given_up_.empty()) return;
    loss_->set(told ? fmt::format("group '{}' was aborted: {}", group_->name(), given_up_) : given_up_);
  }
  for (const auto& link : links_) link->abort(given_up_);
  if (again || told) return;
  try {
    group_->abort(given_up_);
  } catch (const std::exception&) {  // the others are unreachable; they will miss this rank
  }
}

}  // namespace cleave::comm
