// Wraps a transport's group as a communicator: enqueues its collectives on streams in call order.
#pragma once
#include "comm/group.h"

namespace cleave::comm {

// Communicator of rank `rank` of the group.
std::unique_ptr<Communicator> communicator_over(std::shared_ptr<Group> group, int rank);

}  // namespace cleave::comm
