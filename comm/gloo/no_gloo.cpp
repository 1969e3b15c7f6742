#include "comm/gloo/gloo_transport.h"

namespace cleave::comm {

std::shared_ptr<Group> make_gloo_group(GlooMembers, std::shared_ptr<KeyValueClient>, CommOptions,
                                       std::shared_ptr<Alarm>) {
  fail(Exit::usage,
       "--transport: this build has no Gloo, which these ranks need (several hosts, or --transport gloo); "
       "install libgloo-dev and build again");
}

}  // namespace cleave::comm
