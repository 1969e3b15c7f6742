// A transport's group as a communicator: its collectives on streams, in the order in which they were called.
#pragma once
#include "comm/group.h"

namespace cleave::comm {

// The communicator of this rank of the group.
std::unique_ptr<Communicator> communicator_over(std::shared_ptr<Group> group, int rank);

}  // namespace cleave::comm
