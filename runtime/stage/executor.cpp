#include "runtime/stage/executor.h"

#include <map>

#include "core/phase.h"

namespace cleave::runtime {
namespace {

bool writes_gradients(pipeline::Op op) {
  return op == pipeline::Op::backward || op == pipeline::Op::backward_input ||
         op == pipeline::Op::backward_weight;
}

const char* phase_of(pipeline::Op op, bool train) {
  using pipeline::Op;
  if (!train) return "evaluation";
  return op == Op::forward || op == Op::recv_activation || op == Op::send_activation ? "forward" : "backward";
}

bool computes(pipeline::Op op) { return op == pipeline::Op::forward || writes_gradients(op); }

// Returns the list's forwards and backwards as turns, marking forwards that are followed by their own
// backward, and the last backward of each chunk and kind.
std::vector<Turn> turns_of(const pipeline::InstructionList& list) {
  std::vector<Turn> turns;
  std::map<std::pair<pipeline::Op, int>, size_t> last;
  for (size_t i = 0; i < list.size(); ++i) {
    const pipeline::Instruction& now = list[i];
    turns.push_back({now.micro, now.chunk});
    if (writes_gradients(now.op)) last[{now.op, now.chunk}] = i;
  }
  // backward and backward_input write the same gradients.
  for (auto& [key, at] : last) {
    const auto other = last.find(
        {key.first == pipeline::Op::backward ? pipeline::Op::backward_input : pipeline::Op::backward,
         key.second});
    const bool weight = key.first == pipeline::Op::backward_weight;
    turns[at].last = weight || other == last.end() || other->second <= at;
  }
  for (size_t i = 0; i + 1 < list.size(); ++i) {
    const pipeline::Instruction &now = list[i], &next = list[i + 1];
    const bool whole = next.op == pipeline::Op::backward || next.op == pipeline::Op::backward_input;
    if (now.op != pipeline::Op::forward || !whole || now.micro != next.micro || now.chunk != next.chunk)
      continue;
    turns[i].fused = turns[i + 1].fused = true;
    turns[i].last = turns[i + 1].last;
  }
  return turns;
}

}  // namespace

// The graph key includes the first and last micro-batch, because the first one writes gradients, the others
// add to them, and the last one hands them over.
void Executor::graph(pipeline::Op op, const Turn& turn, const std::function<void()>& work) {
  graphs_->run({int(op), turn.chunk, turn.micro == 0, turn.last}, work);
}

void Executor::load(int micro, const Work& work) {
  if (work.begins) work.begins(micro);
  stage_.wait_until_loaded();
  stage_.load(micro, work.batches[size_t(micro)], compute_);
}

void Executor::forward(const Turn& turn, const Work& work) {
  if (graphs_)
    graph(pipeline::Op::forward, turn, [&] { stage_.forward(turn, work.train, compute_); });
  else
    stage_.forward(turn, work.train, compute_);
  const bool end = stage_.shape().last && turn.chunk + 1 == int(stage_.shape().chunks.size());
  if (work.train || !end) return;
  const auto place = [&](const Tensor& sums) {
    return sums.defined() ? sums.slice({turn.micro, turn.micro + 1}) : Tensor();
  };
  stage_.head(turn.micro, {place(work.losses), place(work.hits)}, work.logits, work.rows, compute_);
  stage_.close(turn.micro, turn.chunk, compute_);
}

void Executor::backward(const Turn& turn, const Work& work) {
  compute_.wait(gradient_sent_);  // the previous gradient has left the buffer that this backward writes
  const float scale = work.scales[size_t(turn.micro)];
  const Tensor loss = work.losses.slice({turn.micro, turn.micro + 1});
  if (graphs_)
    graph(pipeline::Op::backward, turn, [&] { stage_.backward(turn, scale, loss, compute_); });
  else
    stage_.backward(turn, scale, loss, compute_);
}

void Executor::run(const pipeline::InstructionList& list, const pipeline::ScheduleShape& shape,
                   const Work& work, std::optional<int> only) {
  const int up = shape.up(links_.activations.rank()), down = shape.down(links_.activations.rank());
  const std::vector<Turn> turns = turns_of(list);
  stage_.begin_texts(work.texts, compute_);
  for (size_t n = 0; n < list.size(); ++n) {
    if (only && list[n].micro != *only) continue;
    const pipeline::Op op = list[n].op;
    const int micro = list[n].micro, chunk = list[n].chunk;  // local names for lambda captures
    if (op == pipeline::Op::forward && chunk == 0) load(micro, work);
    const PhaseMark phase(phase_of(op, work.train));
    const TraceSpan seen(trace_, computes(op) ? compute_ : comm_, "pipeline", pipeline::name_of(op), micro,
                         chunk);
    switch (op) {
      case pipeline::Op::recv_activation:
        links_.activations.recv(stage_.open(micro, chunk, comm_), down, comm_, {.what = "activations"});
        compute_.wait(comm_.record());
        break;
      case pipeline::Op::forward:
        forward(turns[n], work);
        break;
      case pipeline::Op::send_activation:
        comm_.wait(compute_.record());
        links_.activations.send(stage_.output(micro, chunk), up, comm_, {.what = "activations"});
        stage_.hold(micro, chunk, comm_.record());
        if (!work.train) stage_.close(micro, chunk, compute_);
        break;
      case pipeline::Op::recv_gradient:
        comm_.wait(compute_.record());  // the previous backward has read the buffer
        links_.gradients.recv(stage_.output_gradient(micro, chunk), up, comm_,
                              {.what = "activation gradients"});
        compute_.wait(comm_.record());
        break;
      case pipeline::Op::backward:
      case pipeline::Op::backward_input:
        backward(turns[n], work);
        break;
      case pipeline::Op::send_gradient:
        comm_.wait(compute_.record());
        links_.gradients.send(stage_.input_gradient(micro, chunk), down, comm_,
                              {.what = "activation gradients"});
        gradient_sent_ = comm_.record();
        if (stage_.shape().split_backward) stage_.hold(micro, chunk, gradient_sent_);
        break;
      case pipeline::Op::backward_weight:
        if (graphs_)
          graph(op, turns[n],
                [&] { stage_.backward_weight(turns[n], work.scales[size_t(micro)], compute_); });
        else
          stage_.backward_weight(turns[n], work.scales[size_t(micro)], compute_);
        break;
    }
  }
}

}  // namespace cleave::runtime
