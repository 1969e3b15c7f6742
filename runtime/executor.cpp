#include "runtime/executor.h"

#include <map>

namespace cleave {
namespace {

bool writes_gradients(Op op) {
  return op == Op::backward || op == Op::backward_input || op == Op::backward_weight;
}

bool computes(Op op) { return op == Op::forward || writes_gradients(op); }

// The list's forwards and backwards as turns: which forwards are followed by their own backward, and which
// backwards are the last of their chunk and kind.
std::vector<Turn> turns_of(const InstructionList& list) {
  std::vector<Turn> turns;
  std::map<std::pair<Op, int>, size_t> last;
  for (size_t i = 0; i < list.size(); ++i) {
    const Instruction& now = list[i];
    turns.push_back({now.micro, now.chunk});
    if (writes_gradients(now.op)) last[{now.op, now.chunk}] = i;
  }
  // backward and backward_input write the same gradients.
  for (auto& [key, at] : last) {
    const auto other = last.find({key.first == Op::backward ? Op::backward_input : Op::backward, key.second});
    const bool weight = key.first == Op::backward_weight;
    turns[at].last = weight || other == last.end() || other->second <= at;
  }
  for (size_t i = 0; i + 1 < list.size(); ++i) {
    const Instruction &now = list[i], &next = list[i + 1];
    const bool whole = next.op == Op::backward || next.op == Op::backward_input;
    if (now.op != Op::forward || !whole || now.micro != next.micro || now.chunk != next.chunk) continue;
    turns[i].fused = turns[i + 1].fused = true;
    turns[i].last = turns[i + 1].last;
  }
  return turns;
}

}  // namespace

// The first micro-batch writes gradients, the others add to them, and the last one hands them over.
void Executor::pass(Op op, const Turn& turn, const std::function<void()>& work) {
  if (!graphs_) return work();
  graphs_->run({int(op), turn.chunk, turn.micro == 0, turn.last}, work);
}

void Executor::load(int micro, const Work& work) {
  stage_.wait_until_loaded();
  stage_.load(micro, work.batch(micro), compute_);
}

void Executor::forward(const Turn& turn, const Work& work) {
  pass(Op::forward, turn, [&] { stage_.forward(turn, work.train, compute_); });
  const bool end = stage_.shape().last && turn.chunk + 1 == int(stage_.shape().chunks.size());
  if (work.train || !end) return;
  const Tensor loss = work.losses.defined() ? work.losses.slice({turn.micro, turn.micro + 1}) : Tensor();
  stage_.head(turn.micro, loss, work.logits, work.rows, compute_);
  stage_.close(turn.micro, turn.chunk, compute_);
}

void Executor::backward(const Turn& turn, const Work& work) {
  compute_.wait(gradient_sent_);  // out of the buffer that this backward writes
  const float scale = stage_.shape().last ? work.scale(turn.micro) : 1;
  const Tensor loss = work.losses.slice({turn.micro, turn.micro + 1});
  pass(Op::backward, turn, [&] { stage_.backward(turn, scale, loss, compute_); });
}

void Executor::run(const InstructionList& list, const ScheduleShape& shape, const Work& work) {
  const int up = shape.up(links_.activations.rank()), down = shape.down(links_.activations.rank());
  const std::vector<Turn> turns = turns_of(list);
  stage_.begin_texts(work.texts, compute_);
  for (size_t n = 0; n < list.size(); ++n) {
    const auto [op, micro, chunk] = list[n];
    if (op == Op::forward && chunk == 0) load(micro, work);
    const TraceSpan seen(trace_, computes(op) ? compute_ : comm_, "pipeline", name_of(op), micro, chunk);
    switch (op) {
      case Op::recv_activation:
        links_.activations.recv(stage_.open(micro, chunk, comm_), down, comm_, {.what = "activations"});
        compute_.wait(comm_.record());
        break;
      case Op::forward:
        forward(turns[n], work);
        break;
      case Op::send_activation:
        comm_.wait(compute_.record());
        links_.activations.send(stage_.output(micro, chunk), up, comm_, {.what = "activations"});
        stage_.hold(micro, chunk, comm_.record());
        if (!work.train) stage_.close(micro, chunk, compute_);
        break;
      case Op::recv_gradient:
        comm_.wait(compute_.record());  // the backward before has read the buffer
        links_.gradients.recv(stage_.output_gradient(micro, chunk), up, comm_,
                              {.what = "activation gradients"});
        compute_.wait(comm_.record());
        break;
      case Op::backward:
      case Op::backward_input:
        backward(turns[n], work);
        break;
      case Op::send_gradient:
        comm_.wait(compute_.record());
        links_.gradients.send(stage_.input_gradient(micro, chunk), down, comm_,
                              {.what = "activation gradients"});
        gradient_sent_ = comm_.record();
        if (stage_.shape().split_backward) stage_.hold(micro, chunk, gradient_sent_);
        break;
      case Op::backward_weight:
        pass(op, turns[n], [&] { stage_.backward_weight(turns[n], compute_); });
        break;
    }
  }
}

}  // namespace cleave
