#include "launcher/rank_ports.h"

#include <cerrno>
#include <cstring>

#include "comm/rendezvous/meeting_point.h"
#include "core/error.h"
#include "launcher/children.h"

namespace cleave::launcher {

RankPorts take_ports(const NodeStart& node, bool meet) {
  RankPorts ports;
  const comm::MeetingPoint point = comm::meeting_point(node.master_addr);
  const bool listens = meet && node.world > 1 && !node.token.empty();
  const bool only_ranks = listens && node.nodes > 1 && is_this_program(node.ranks.front().command);
  comm::Socket& first = only_ranks ? ports.meeting : ports.reserved;
  first = only_ranks ? comm::listen_at(point, node.master_port) : comm::reserve_port(node.master_port);
  if (const int error = errno; !first)
    fail(Exit::usage, "{} cannot be used for the rendezvous: {}",
         node.master_port > 0 ? fmt::format("port {}", node.master_port) : "a free port",
         comm::problem_of_port(node.master_port, error));
  ports.master_port = comm::port_of(first);
  if (listens && node.nodes == 1) {
    ports.meeting = comm::listen_at(point, 0);
    require(bool(ports.meeting), Exit::usage, "{}: the ranks cannot connect there: {}", node.master_addr,
            std::strerror(errno));
  }
  if (ports.meeting) ports.meeting_port = comm::port_of(ports.meeting);
  return ports;
}

}  // namespace cleave::launcher
