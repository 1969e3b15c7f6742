// Transport between hosts over Gloo's TCP pairs. Shards travel point to point, and Cleave adds them in rank
// order: the volume equals reduce-scatter and all-gather, and the bits equal those of all other transports.
#pragma once
#include "comm/group.h"
#include "comm/rendezvous/key_value_client.h"

namespace cleave::comm {

struct GlooMembers {
  std::string name;
  std::vector<int> ranks;           // of the world
  std::vector<std::string> labels;  // "rank 1 (pid 123 on host x)"
  int rank = 0;
  std::string address;  // of this rank, reachable from the others
  std::string key;      // of this group in the store; unique
};

// Collective over the members. Throws Error(usage) in a build without Gloo.
std::shared_ptr<Group> make_gloo_group(GlooMembers members, std::shared_ptr<KeyValueClient> store,
                                       CommOptions options, std::shared_ptr<Alarm> alarm);

}  // namespace cleave::comm
