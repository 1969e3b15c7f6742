// A group that sends messages late, like a busy network: sent buffers must not change until then.
#pragma once
#include <chrono>
#include <memory>
#include <thread>

#include "comm/communicator.h"

namespace cleave::testing {

class SlowSends final : public comm::Communicator {
 public:
  explicit SlowSends(comm::Communicator& ranks, std::unique_ptr<comm::Communicator> own = {})
      : comm::Communicator(ranks.rank(), ranks.size(), ranks.name()), ranks_(ranks), own_(std::move(own)) {}

  std::unique_ptr<comm::Communicator> split(const Subgroup& part, const std::string& name) override {
    auto own = ranks_.split(part, name);
    comm::Communicator& ranks = *own;
    return std::make_unique<SlowSends>(ranks, std::move(own));
  }
  void abort(const std::string& reason) override { ranks_.abort(reason); }

 private:
  void do_send(Tensor t, int to, Stream& stream, const comm::Call& call) override {
    stream.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
    ranks_.send(t, to, stream, {.what = call.what});
  }
  void do_recv(Tensor t, int from, Stream& stream, const comm::Call& call) override {
    ranks_.recv(t, from, stream, {.what = call.what});
  }
  void do_all_gather(Tensor full, Tensor shard, Range piece, Stream& stream,
                     const comm::Call& call) override {
    ranks_.all_gather(full, shard, stream, {.what = call.what, .within = piece});
  }
  void do_reduce_scatter(Tensor shard, Tensor full, Range piece, Stream& stream,
                         const comm::Call& call) override {
    ranks_.reduce_scatter(shard, full, stream, {.what = call.what, .within = piece, .by = call.by});
  }
  void do_all_reduce(Tensor t, Stream& stream, const comm::Call& call) override {
    ranks_.all_reduce(t, stream, {.what = call.what, .by = call.by});
  }
  void do_broadcast(Tensor t, int root, Stream& stream, const comm::Call& call) override {
    ranks_.broadcast(t, root, stream, {.what = call.what});
  }
  void do_all_to_all(Tensor out, Tensor in, Range piece, Stream& stream, const comm::Call& call) override {
    if (piece.begin == 0) ranks_.all_to_all(out, in, stream, call);
  }
  void do_barrier(Stream& stream, const comm::Call& call) override { ranks_.barrier(stream, call); }

  comm::Communicator& ranks_;
  std::unique_ptr<comm::Communicator> own_;  // for a split: ranks_
};

}  // namespace cleave::testing
