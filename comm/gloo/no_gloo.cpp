#include "comm/gloo/gloo_transport.h"

namespace cleave::comm {

std::shared_ptr<Group> make_gloo_group(GlooMembers, std::shared_ptr<KeyValueClient>, CommOptions,
                                       std::shared_ptr<Alarm>) {
  fail(Exit::usage,
       "these ranks need Gloo (they are on several hosts, or the gloo transport was asked for), and this "
       "build has no "
       "Gloo: install libgloo-dev and build again");
}

}  // namespace cleave::comm
