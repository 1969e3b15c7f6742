#include "pipeline/simulate.h"

#include <algorithm>
#include <deque>
#include <numeric>

#include "core/error.h"

namespace cleave::pipeline {
namespace {

enum Done : uint8_t {
  kReceived = 1,
  kForward = 2,
  kSent = 4,
  kGradientReceived = 8,
  kInput = 16,
  kSplit = 32,
  kWeight = 64,
  kGradientSent = 128,
};

struct Message {
  int micro, piece;
  double at;
};

struct Channel {
  std::deque<Message> waiting;
  std::deque<double> taken;  // receive times of earlier messages, for the time of a waiting send
};

struct Rank {
  size_t next = 0;
  double now = 0;
  int frames = 0, weights = 0, loaded = 0;
  std::vector<uint8_t> done;  // per chunk and micro-batch
  std::vector<int> uses;      // per micro-batch: remaining forwards and backwards
  int oldest = 0;
};

class Run {
 public:
  Run(const Schedule& s, const SimulateOptions& o)
      : s_(s.shape),
        lists_(s.ranks),
        o_(o),
        ranks_(size_t(s_.stages)),
        activations_(size_t(s_.stages)),
        gradients_(size_t(s_.stages)) {
    for (Rank& r : ranks_) {
      r.done.assign(size_t(s_.chunks) * size_t(s_.micros), 0);
      r.uses.assign(size_t(s_.micros), s_.chunks * (o_.training ? 2 : 1));
    }
    out_.peak_frames.assign(ranks_.size(), 0), out_.peak_batches.assign(ranks_.size(), 0);
    out_.peak_weights.assign(ranks_.size(), 0);
    out_.busy.assign(ranks_.size(), 0);
    if (o_.record) out_.spans.resize(ranks_.size());
  }

  Simulation run() {
    for (bool moved = true; moved && out_.fault.empty();) {
      moved = false;
      for (int r = 0; r < s_.stages; ++r)
        while (out_.fault.empty() && rank(r).next < list(r).size() && execute(r, list(r)[rank(r).next]))
          ++rank(r).next, moved = true;
    }
    if (out_.fault.empty()) check_end();
    for (const Rank& r : ranks_) out_.makespan = std::max(out_.makespan, r.now);
    return std::move(out_);
  }

 private:
  Rank& rank(int r) { return ranks_[size_t(r)]; }
  const InstructionList& list(int r) const { return lists_[size_t(r)]; }
  uint8_t& done(int r, const Instruction& i) {
    return rank(r).done[size_t(i.chunk) * size_t(s_.micros) + size_t(i.micro)];
  }

  bool fault(int r, const Instruction& i, std::string_view why) {
    out_.fault =
        fmt::format("rank {}: {} of micro-batch {}, chunk {}: {}", r, name_of(i.op), i.micro, i.chunk, why);
    return false;
  }

  // Returns true if the instruction can run now; a violation sets the fault.
  bool execute(int r, const Instruction& i) {
    if (i.micro < 0 || i.micro >= s_.micros || i.chunk < 0 || i.chunk >= s_.chunks)
      return fault(r, i, "no such micro-batch or chunk");
    const int piece = s_.piece(r, i.chunk);
    const bool first = piece == 0, last = piece == s_.pieces() - 1;
    const uint8_t state = done(r, i);
    switch (i.op) {
      case Op::recv_activation:
        if (first) return fault(r, i, "the first piece receives no activations");
        if (state & kReceived) return fault(r, i, "a second time");
        if (!receive(r, i, activations_[size_t(r)], piece)) return false;
        open(r);
        return mark(r, i, kReceived);
      case Op::forward:
        if (state & kForward) return fault(r, i, "a second time");
        if (!first && !(state & kReceived)) return fault(r, i, "its input was not received");
        if (first) open(r);
        work(r, i, piece, o_.forward);
        use(r, i.micro);
        // Without a backward, the forward ends the micro-batch.
        if (!o_.training) --rank(r).frames;
        return mark(r, i, kForward);
      case Op::send_activation:
        if (last) return fault(r, i, "no piece follows the last one");
        if (!(state & kForward)) return fault(r, i, "there is nothing to send yet");
        if (state & kSent) return fault(r, i, "a second time");
        return send(r, activations_[size_t(s_.up(r))], {i.micro, piece + 1, 0}) && mark(r, i, kSent);
      case Op::recv_gradient:
        if (last) return fault(r, i, "the last piece makes its own gradient");
        if (!(state & kForward)) return fault(r, i, "before its forward");
        if (state & kGradientReceived) return fault(r, i, "a second time");
        return receive(r, i, gradients_[size_t(r)], piece) && mark(r, i, kGradientReceived);
      case Op::backward:
      case Op::backward_input:
        return backward(r, i, piece, last);
      case Op::backward_weight:
        if (!(state & kSplit)) return fault(r, i, "there was no backward_input before it");
        if (state & kWeight) return fault(r, i, "a second time");
        work(r, i, piece, o_.backward_weight * split_share(piece));
        --rank(r).weights;
        return close(r, i) && mark(r, i, kWeight);
      case Op::send_gradient:
        if (first) return fault(r, i, "no piece precedes the first one");
        if (!(state & kInput)) return fault(r, i, "there is nothing to send yet");
        if (state & kGradientSent) return fault(r, i, "a second time");
        return send(r, gradients_[size_t(s_.down(r))], {i.micro, piece - 1, 0}) && mark(r, i, kGradientSent);
    }
    return false;
  }

  bool backward(int r, const Instruction& i, int piece, bool last) {
    const uint8_t state = done(r, i);
    if (!(state & kForward)) return fault(r, i, "before its forward");
    if (state & kInput) return fault(r, i, "a second time");
    if (!last && !(state & kGradientReceived)) return fault(r, i, "its gradient was not received");
    const bool whole = i.op == Op::backward;
    const double at_once = whole ? 1 : 1 - split_share(piece);
    work(r, i, piece, o_.backward_input + o_.backward_weight * at_once);
    if (whole) return close(r, i) && mark(r, i, kInput | kWeight);
    out_.peak_weights[size_t(r)] = std::max(out_.peak_weights[size_t(r)], ++rank(r).weights);
    return mark(r, i, kInput | kSplit);
  }

  double split_share(int piece) const { return o_.splits.empty() ? 1.0 : o_.splits[size_t(piece)]; }

  bool mark(int r, const Instruction& i, int bits) {
    done(r, i) |= uint8_t(bits);
    return true;
  }

  void work(int r, const Instruction& i, int piece, double time) {
    const double t = time * (o_.work.empty() ? 1.0 : o_.work[size_t(piece)]);
    if (o_.record) out_.spans[size_t(r)].push_back({i, rank(r).now, rank(r).now + t, rank(r).frames});
    rank(r).now += t, out_.busy[size_t(r)] += t;
  }

  void open(int r) { out_.peak_frames[size_t(r)] = std::max(out_.peak_frames[size_t(r)], ++rank(r).frames); }
  bool close(int r, const Instruction& i) {
    --rank(r).frames;
    use(r, i.micro);
    return true;
  }

  // Counts a use of a micro-batch on the rank: the first use loads it, the last use frees it.
  void use(int r, int micro) {
    Rank& k = rank(r);
    k.loaded = std::max(k.loaded, micro + 1);
    out_.peak_batches[size_t(r)] = std::max(out_.peak_batches[size_t(r)], k.loaded - k.oldest);
    --k.uses[size_t(micro)];
    while (k.oldest < s_.micros && k.uses[size_t(k.oldest)] == 0) ++k.oldest;
  }

  bool send(int r, Channel& channel, Message message) {
    if (int64_t(channel.waiting.size()) >= o_.capacity) return false;
    Rank& k = rank(r);
    if (o_.capacity != SimulateOptions::kUnlimited && int64_t(channel.taken.size()) >= o_.capacity) {
      k.now = std::max(k.now, channel.taken.front());
      channel.taken.pop_front();
    }
    message.at = k.now;
    channel.waiting.push_back(message);
    out_.peak_messages = std::max(out_.peak_messages, int64_t(channel.waiting.size()));
    return true;
  }

  bool receive(int r, const Instruction& i, Channel& channel, int piece) {
    if (channel.waiting.empty()) return false;
    const Message m = channel.waiting.front();
    if (m.micro != i.micro || m.piece != piece)
      return fault(r, i,
                   fmt::format("the next message is micro-batch {} for piece {} of the model (expected this "
                               "micro-batch for piece {})",
                               m.micro, m.piece, piece));
    channel.waiting.pop_front();
    rank(r).now = std::max(rank(r).now, m.at);
    if (o_.capacity != SimulateOptions::kUnlimited) channel.taken.push_back(rank(r).now);
    return true;
  }

  void check_end() {
    std::string stuck;
    for (int r = 0; r < s_.stages; ++r)
      if (rank(r).next < list(r).size()) {
        const Instruction& i = list(r)[rank(r).next];
        stuck += fmt::format("{}rank {} waits in {} of micro-batch {}, chunk {}", stuck.empty() ? "" : "; ",
                             r, name_of(i.op), i.micro, i.chunk);
      }
    if (!stuck.empty()) {
      out_.fault = "deadlock: " + stuck;
      return;
    }
    for (int r = 0; r < s_.stages; ++r)
      for (int c = 0; c < s_.chunks; ++c)
        for (int m = 0; m < s_.micros; ++m) check_complete(r, {Op::forward, m, c});
  }

  void check_complete(int r, const Instruction& i) {
    if (!out_.fault.empty()) return;
    const int piece = s_.piece(r, i.chunk);
    int wanted = kForward;
    if (piece > 0) wanted |= kReceived | (o_.training ? kGradientSent : 0);
    if (piece < s_.pieces() - 1) wanted |= kSent | (o_.training ? kGradientReceived : 0);
    if (o_.training) wanted |= kInput | kWeight;
    if ((done(r, i) & ~kSplit) != wanted)
      out_.fault = fmt::format("rank {}: micro-batch {}, chunk {} is incomplete at the end of the step", r,
                               i.micro, i.chunk);
  }

  const ScheduleShape s_;
  const std::vector<InstructionList>& lists_;
  const SimulateOptions& o_;
  std::vector<Rank> ranks_;
  std::vector<Channel> activations_, gradients_;  // per receiver; it has one sender
  Simulation out_;
};

}  // namespace

double Simulation::idle_share() const {
  const double whole = makespan * double(busy.size());
  return whole > 0 ? 1 - std::accumulate(busy.begin(), busy.end(), 0.0) / whole : 0;
}

Simulation simulate(const Schedule& schedule, const SimulateOptions& options) {
  CHECK(int(schedule.ranks.size()) == schedule.shape.stages, "a schedule of {} stages has {} lists",
        schedule.shape.stages, schedule.ranks.size());
  CHECK(options.capacity >= 1, "a channel holds at least one message, got {}", options.capacity);
  CHECK(options.work.empty() || int(options.work.size()) == schedule.shape.pieces(),
        "wrong number of pieces of work (got {}, expected {})", options.work.size(), schedule.shape.pieces());
  CHECK(options.splits.empty() || int(options.splits.size()) == schedule.shape.pieces(),
        "wrong number of shares (got {}, expected {})", options.splits.size(), schedule.shape.pieces());
  return Run(schedule, options).run();
}

}  // namespace cleave::pipeline
