#include "comm/planned.h"

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
  void note(Collective op, DType dtype, int peer, int64_t numel, Reduction by = Reduction::sum) const {
    if (trace_) trace_(group_, {op, dtype, peer, numel, by});
  }
  void do_all_gather(Tensor full, Tensor, Range piece, Stream&, const Call&) override {
    note(Collective::all_gather, full.dtype(), -1, piece.size() * size());
  }
  void do_reduce_scatter(Tensor, Tensor full, Range piece, Stream&, const Call& call) override {
    note(Collective::reduce_scatter, full.dtype(), -1, piece.size() * size(), call.by);
  }
  void do_all_reduce(Tensor t, Stream&, const Call& call) override {
    note(Collective::all_reduce, t.dtype(), -1, t.numel(), call.by);
  }
  void do_broadcast(Tensor t, int root, Stream&, const Call&) override {
    note(Collective::broadcast, t.dtype(), root, t.numel());
  }
  void do_all_to_all(Tensor, Tensor in, Range piece, Stream&, const Call&) override {
    note(Collective::all_to_all, in.dtype(), -1, piece.size() * size());
  }
  void do_send(Tensor t, int to, Stream&, const Call&) override {
    note(Collective::send, t.dtype(), to, t.numel());
  }
  void do_recv(Tensor t, int from, Stream&, const Call&) override {
    note(Collective::recv, t.dtype(), from, t.numel());
  }
  void do_barrier(Stream&, const Call&) override { note(Collective::barrier, {}, -1, 0); }

  PlannedGroup group_;
  CallTrace trace_;
};

}  // namespace

std::unique_ptr<Communicator> planned_communicator(int rank, int size, CallTrace trace) {
  if (size == 1) return self_communicator("world");
  return std::make_unique<PlannedCommunicator>(rank, size, "world", "world", std::move(trace));
}

}  // namespace cleave::comm
