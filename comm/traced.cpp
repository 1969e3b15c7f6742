#include "comm/traced.h"

namespace cleave::comm {
namespace {

class TracedCommunicator final : public Communicator {
 public:
  TracedCommunicator(Communicator& ranks, std::unique_ptr<Communicator> own, Trace& trace)
      : Communicator(ranks.rank(), ranks.size(), ranks.name()),
        ranks_(ranks),
        own_(std::move(own)),
        trace_(trace) {}

  std::unique_ptr<Communicator> split(const Subgroup& part, const std::string& name) override {
    auto own = ranks_.split(part, name);
    Communicator& ranks = *own;
    return std::make_unique<TracedCommunicator>(ranks, std::move(own), trace_);
  }
  void abort(const std::string& reason) override { ranks_.abort(reason); }
  TransportAccess* transport() override { return ranks_.transport(); }

 private:
  // `bytes` is the size of the whole tensor, as for bandwidths.
  TraceSpan span(Collective op, int64_t bytes, Stream& stream, const Call& call) {
    if (!trace_.on()) return {nullptr, stream, TraceEvent{}};
    return {&trace_, stream,
            TraceEvent{.name = fmt::format("{} of {}: {}", name_of(op), name(), call.what),
                       .category = "collective",
                       .op = name_of(op),
                       .bytes = bytes,
                       .ranks = size()}};
  }
  void do_all_gather(Tensor full, Tensor shard, Range piece, Stream& stream, const Call& call) override {
    const TraceSpan seen =
        span(Collective::all_gather, piece.size() * size() * size_of(full.dtype()), stream, call);
    ranks_.all_gather(full, shard, stream, {.what = call.what, .within = piece});
  }
  void do_reduce_scatter(Tensor shard, Tensor full, Range piece, Stream& stream, const Call& call) override {
    const TraceSpan seen =
        span(Collective::reduce_scatter, piece.size() * size() * size_of(full.dtype()), stream, call);
    ranks_.reduce_scatter(shard, full, stream, {.what = call.what, .within = piece, .by = call.by});
  }
  void do_all_reduce(Tensor t, Stream& stream, const Call& call) override {
    const TraceSpan seen = span(Collective::all_reduce, t.bytes(), stream, call);
    ranks_.all_reduce(t, stream, {.what = call.what, .by = call.by});
  }
  void do_broadcast(Tensor t, int root, Stream& stream, const Call& call) override {
    const TraceSpan seen = span(Collective::broadcast, t.bytes(), stream, call);
    ranks_.broadcast(t, root, stream, {.what = call.what});
  }
  // Passes the whole call on at its first piece, because the inner communicator cuts it again.
  void do_all_to_all(Tensor out, Tensor in, Range piece, Stream& stream, const Call& call) override {
    if (piece.begin > 0) return;
    const TraceSpan seen = span(Collective::all_to_all, in.bytes(), stream, call);
    ranks_.all_to_all(out, in, stream, call);
  }
  void do_send(Tensor t, int to, Stream& stream, const Call& call) override {
    const TraceSpan seen = span(Collective::send, t.bytes(), stream, call);
    ranks_.send(t, to, stream, {.what = call.what});
  }
  void do_recv(Tensor t, int from, Stream& stream, const Call& call) override {
    const TraceSpan seen = span(Collective::recv, t.bytes(), stream, call);
    ranks_.recv(t, from, stream, {.what = call.what});
  }
  void do_barrier(Stream& stream, const Call& call) override {
    const TraceSpan seen = span(Collective::barrier, 0, stream, call);
    ranks_.barrier(stream, call);
  }

  Communicator& ranks_;
  std::unique_ptr<Communicator> own_;  // owns ranks_ after a split
  Trace& trace_;
};

}  // namespace

std::unique_ptr<Communicator> traced_communicator(Communicator& ranks, Trace& trace) {
  return std::make_unique<TracedCommunicator>(ranks, nullptr, trace);
}

}  // namespace cleave::comm
