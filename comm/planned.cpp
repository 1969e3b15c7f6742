#include "comm/planned.h"

#include "device/work_log.h"

namespace cleave::comm {
namespace {

class PlannedCommunicator final : public Communicator {
 public:
  PlannedCommunicator(int rank, int size, const std::string& name, std::string path, CallTrace trace)
      : Communicator(rank, size, name), group_{std::move(path), rank, size}, trace_(std::move(trace)) {}

  std::unique_ptr<Communicator> split(const Subgroup& part, const std::string& name) override {
    std::string path = fmt::format("{}/{}:{}", group_.path, name, part.color);
    return std::make_unique<PlannedCommunicator>(part.rank, part.size, name, std::move(path), trace_);
  }
  void abort(const std::string&) override {}

 private:
  void note(const Stream& on, Collective op, DType dtype, int peer, int64_t numel,
            Reduction by = Reduction::sum) const {
    if (trace_) trace_(group_, {op, dtype, peer, numel, by});
    if (WorkLog* log = WorkLog::current())
      log->message(
          on, {group_.path, rank(), size()},
          {.op = uint8_t(op), .peer = peer, .bytes = share_sent(op) * double(numel * size_of(dtype))});
  }
  // Bytes that a rank sends per byte of the whole tensor (CommBytes).
  double share_sent(Collective op) const {
    const double others = double(size() - 1) / size();
    return op == Collective::recv || op == Collective::barrier     ? 0
           : op == Collective::send || op == Collective::broadcast ? 1
           : op == Collective::all_reduce                          ? 2 * others
                                                                   : others;
  }
  void do_all_gather(Tensor full, Tensor, Range piece, Stream& on, const Call&) override {
    note(on, Collective::all_gather, full.dtype(), -1, piece.size() * size());
  }
  void do_reduce_scatter(Tensor, Tensor full, Range piece, Stream& on, const Call& call) override {
    note(on, Collective::reduce_scatter, full.dtype(), -1, piece.size() * size(), call.by);
  }
  void do_all_reduce(Tensor t, Stream& on, const Call& call) override {
    note(on, Collective::all_reduce, t.dtype(), -1, t.numel(), call.by);
  }
  void do_broadcast(Tensor t, int root, Stream& on, const Call&) override {
    note(on, Collective::broadcast, t.dtype(), root, t.numel());
  }
  void do_all_to_all(Tensor, Tensor in, Range piece, Stream& on, const Call&) override {
    note(on, Collective::all_to_all, in.dtype(), -1, piece.size() * size());
  }
  void do_send(Tensor t, int to, Stream& on, const Call&) override {
    note(on, Collective::send, t.dtype(), to, t.numel());
  }
  void do_recv(Tensor t, int from, Stream& on, const Call&) override {
    note(on, Collective::recv, t.dtype(), from, t.numel());
  }
  void do_barrier(Stream& on, const Call&) override { note(on, Collective::barrier, {}, -1, 0); }

  PlannedGroup group_;
  CallTrace trace_;
};

}  // namespace

int64_t received_bytes(const PlannedGroup& group, const Post& post) {
  const int64_t bytes = post.numel * size_of(post.dtype), each = bytes / group.size;
  switch (post.op) {
    case Collective::all_gather:
    case Collective::all_to_all:
      return bytes - each;
    case Collective::reduce_scatter:
      return each;
    case Collective::all_reduce:
    case Collective::recv:
      return bytes;
    case Collective::broadcast:
      return post.peer == group.rank ? 0 : bytes;
    case Collective::send:
    case Collective::barrier:
      return 0;
  }
  return 0;
}

std::unique_ptr<Communicator> planned_communicator(int rank, int size, CallTrace trace) {
  if (size == 1) return self_communicator("world");
  return std::make_unique<PlannedCommunicator>(rank, size, "world", "world", std::move(trace));
}

}  // namespace cleave::comm
