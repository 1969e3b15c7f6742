#include "plan/timeline.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <tuple>

#include "comm/communicator.h"
#include "core/error.h"

namespace cleave::plan {
namespace {

using Kind = WorkEntry::Kind;

struct Rank {
  const RankWork& work;
  size_t next = 0;
  std::vector<int> groups = {};  // indices in Replay::callers_, by group of the work
  std::vector<double> streams = {}, events = {};
  double first_end = 0;
  Replayed counted = {};
};

class Replay {
 public:
  Replay(std::span<const RankWork* const> stages, const ReplayRates& rates) : rates_(rates) {
    std::map<std::string, int> paths;
    for (const RankWork* work : stages) {
      Rank& rank = ranks_.emplace_back(Rank{*work});
      for (const WorkEntry& e : work->entries) {
        rank.streams.resize(std::max(rank.streams.size(), size_t(e.stream) + 1));
        rank.events.resize(std::max(rank.events.size(), size_t(e.event) + 1));
      }
      for (const RankWork::Group& group : work->groups) {
        const int at = paths.try_emplace(group.path, int(callers_.size())).first->second;
        callers_.resize(paths.size()), ++callers_[size_t(at)];
        rank.groups.push_back(at);
      }
    }
    meetings_.resize(callers_.size());
  }

  Replayed run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r)
        while (ranks_[r].next < ranks_[r].work.entries.size() && step(r)) moved = true;
    }
    Replayed out;
    double first = 0, second = 0;
    for (const Rank& rank : ranks_) {
      CHECK(rank.next == rank.work.entries.size(), "the work of a rank waits for a message forever");
      first = std::max(first, rank.first_end), second = std::max(second, end(rank));
      out.compute = std::max(out.compute, rank.counted.compute);
      out.messages = std::max(out.messages, rank.counted.messages);
      out.launched += rank.counted.launched;
    }
    out.step = second - first;
    return out;
  }

 private:
  static double end(const Rank& rank) {
    return rank.streams.empty() ? 0 : *std::ranges::max_element(rank.streams);
  }

  // Returns false if the rank has to wait for another one.
  bool step(size_t r) {
    Rank& rank = ranks_[r];
    const WorkEntry& e = rank.work.entries[rank.next];
    double& now = rank.streams[size_t(e.stream)];
    if (rank.next == rank.work.first_step) rank.first_end = end(rank);
    const bool counts = rank.next >= rank.work.first_step;
    switch (e.kind) {
      case Kind::launch: {
        const double seconds = e.flops / rates_.flops + (e.repeated ? e.bytes / rates_.memory : 0);
        now += seconds;
        if (counts) rank.counted.compute += seconds, rank.counted.launched += e.repeated ? 0 : e.flops;
        break;
      }
      case Kind::record:
        rank.events[size_t(e.event)] = now;
        break;
      case Kind::wait:
        now = std::max(now, rank.events[size_t(e.event)]);
        break;
      case Kind::message:
        if (!message(r, e, now)) return false;
        if (counts) rank.counted.messages += seconds_of(rank.work.groups[size_t(e.group)], e);
    }
    ++rank.next;
    return true;
  }

  // A ring enters and leaves each node once, so its ranks on a node share their links to the network.
  double seconds_of(const RankWork::Group& group, const WorkEntry& e) const {
    if (!rates_.messages) return 0;
    const bool pair = e.peer >= 0;  // one of the node's links carries it
    const double network = rates_.network * (pair ? 1 : group.here);
    return e.bytes / (group.here == group.size ? rates_.node_link : std::min(rates_.node_link, network));
  }

  bool message(size_t r, const WorkEntry& e, double& now) {
    const RankWork::Group& group = ranks_[r].work.groups[size_t(e.group)];
    const int g = ranks_[r].groups[size_t(e.group)];
    const auto op = comm::Collective(e.op);
    if (op == comm::Collective::send) {
      // The message travels on a channel of its own (comm/nccl/channel.h).
      double& channel = channels_[{g, group.rank, e.peer}];
      channel = std::max(channel, now) + seconds_of(group, e);
      letters_[{g, group.rank, e.peer}].push_back(channel);
      return true;
    }
    if (op == comm::Collective::recv) {
      std::deque<double>& letters = letters_[{g, e.peer, group.rank}];
      if (letters.empty()) return false;
      now = std::max(now, letters.front());
      letters.pop_front();
      return true;
    }
    if (callers_[size_t(g)] > 1) return meet(r, g, now + seconds_of(group, e), now);
    now += seconds_of(group, e);
    return true;
  }

  // Ends a call of several replayed ranks when the last of them has arrived.
  bool meet(size_t r, int group, double end, double& now) {
    Meeting& m = meetings_[size_t(group)];
    if (m.ended && m.waits[r]) {
      now = m.end, m.waits[r] = false;
      if (std::ranges::none_of(m.waits, [](bool w) { return w; })) m = {};
      return true;
    }
    if (m.ended) return false;  // the others have not left the previous call
    m.waits.resize(ranks_.size());
    if (!m.waits[r]) m.waits[r] = true, ++m.arrived, m.end = std::max(m.end, end);
    if (m.arrived < callers_[size_t(group)]) return false;
    m.ended = true;
    return meet(r, group, end, now);
  }

  struct Meeting {
    std::vector<bool> waits;
    int arrived = 0;
    double end = 0;
    bool ended = false;
  };
  using Way = std::tuple<int, int, int>;  // group, sender, receiver

  const ReplayRates rates_;
  std::deque<Rank> ranks_;
  std::vector<int> callers_;  // replayed ranks of each group
  std::vector<Meeting> meetings_;
  std::map<Way, double> channels_;
  std::map<Way, std::deque<double>> letters_;
};

}  // namespace

Replayed replay(std::span<const RankWork* const> stages, const ReplayRates& rates) {
  return Replay(stages, rates).run();
}

}  // namespace cleave::plan
