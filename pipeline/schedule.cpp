#include "pipeline/schedule.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/range.h"

namespace cleave::pipeline {

std::string_view name_of(Op op) {
  constexpr std::string_view names[] = {"forward",         "backward",        "backward_input",
                                        "backward_weight", "send_activation", "recv_activation",
                                        "send_gradient",   "recv_gradient"};
  return names[size_t(op)];
}

InstructionList gpipe(const ScheduleShape& shape, int) {
  InstructionList list;
  for (int m = 0; m < shape.micros; ++m) list.push_back({Op::forward, m});
  for (int m = 0; m < shape.micros; ++m) list.push_back({Op::backward, m});
  return list;
}

InstructionList one_forward_one_backward(const ScheduleShape& shape, int rank) {
  const int warm_up = std::min(shape.stages - rank - 1, shape.micros);
  InstructionList list;
  for (int m = 0; m < warm_up; ++m) list.push_back({Op::forward, m});
  for (int m = warm_up; m < shape.micros; ++m) {
    list.push_back({Op::forward, m});
    list.push_back({Op::backward, m - warm_up});
  }
  for (int m = shape.micros - warm_up; m < shape.micros; ++m) list.push_back({Op::backward, m});
  return list;
}

namespace {

// The k-th forward of a rank: groups of `stages` micro-batches pass through one chunk after the other.
// Backwards have the same order with reversed chunks.
Instruction nth_forward(const ScheduleShape& s, int k) {
  const int group = k / s.pieces(), within = k % s.pieces();
  return {Op::forward, group * s.stages + within % s.stages, within / s.stages};
}

}  // namespace

InstructionList interleaved(const ScheduleShape& s, int rank) {
  if (s.chunks == 1) return one_forward_one_backward(s, rank);
  const int total = int(round_up(s.micros, s.stages)) * s.chunks;
  const int warm_up = std::min(total, 2 * (s.stages - rank - 1) + (s.chunks - 1) * s.stages);
  InstructionList list;
  const auto add = [&](Instruction i) {
    if (i.micro < s.micros) list.push_back(i);
  };
  for (int k = 0; k < total + warm_up; ++k) {
    if (k < total) add(nth_forward(s, k));
    if (k < warm_up) continue;
    const Instruction f = nth_forward(s, k - warm_up);
    add({Op::backward, f.micro, s.chunks - 1 - f.chunk});
  }
  return list;
}

// Later stages delay their first `rank` weight gradients, so that input gradients pass down the pipe without
// waiting for them; the delayed ones fill the end of the step.
InstructionList zero_bubble_h1(const ScheduleShape& s, int rank) {
  const int warm_up = std::min(s.stages - rank - 1, s.micros);
  InstructionList list;
  int weights = 0;
  for (int m = 0; m < warm_up; ++m) list.push_back({Op::forward, m});
  for (int m = 0; m < s.micros; ++m) {
    if (m + warm_up < s.micros) list.push_back({Op::forward, m + warm_up});
    list.push_back({Op::backward_input, m});
    if (m >= rank) list.push_back({Op::backward_weight, weights++});
  }
  while (weights < s.micros) list.push_back({Op::backward_weight, weights++});
  return list;
}

InstructionList forward_only(const ScheduleShape& s, int) {
  InstructionList list;
  const int total = int(round_up(s.micros, s.stages)) * s.chunks;
  for (int k = 0; k < total; ++k)
    if (const Instruction f = nth_forward(s, k); f.micro < s.micros) list.push_back(f);
  return list;
}

InstructionList with_transfers(const InstructionList& computations, const ScheduleShape& shape, int rank) {
  InstructionList list;
  for (const Instruction& i : computations) {
    const int piece = shape.piece(rank, i.chunk);
    const bool first = piece == 0, last = piece == shape.pieces() - 1;
    const bool forward = i.op == Op::forward;
    const bool backward = i.op == Op::backward || i.op == Op::backward_input;
    if (forward && !first) list.push_back({Op::recv_activation, i.micro, i.chunk});
    if (backward && !last) list.push_back({Op::recv_gradient, i.micro, i.chunk});
    list.push_back(i);
    if (forward && !last) list.push_back({Op::send_activation, i.micro, i.chunk});
    if (backward && !first) list.push_back({Op::send_gradient, i.micro, i.chunk});
  }
  return list;
}

namespace {

constexpr ScheduleRow kRows[] = {{"gpipe", gpipe, false},
                                 {"1f1b", one_forward_one_backward, false},
                                 {"interleaved", interleaved, true},
                                 {"zb-h1", zero_bubble_h1, false}};
constexpr ScheduleRow kForwardOnly = {"forward_only", forward_only, true};

}  // namespace

const ScheduleRow* find_schedule(std::string_view name) {
  for (const ScheduleRow& row : kRows)
    if (row.name == name) return &row;
  return nullptr;
}

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const ScheduleRow& row : kRows) all.emplace_back(row.name);
    return all;
  }();
  return names;
}

Schedule make_schedule(std::string_view name, const ScheduleShape& shape) {
  require(shape.stages >= 1 && shape.micros >= 1 && shape.chunks >= 1, Exit::usage,
          "pipeline: stages, chunks per rank and micro-batches must be at least 1 (got {}, {} and {})",
          shape.stages, shape.chunks, shape.micros);
  const ScheduleRow* row = name == kForwardOnly.name ? &kForwardOnly : find_schedule(name);
  require(row != nullptr, Exit::usage, "pipeline.schedule: unknown (got \"{}\", expected {})", name,
          fmt::join(schedule_names(), ", "));
  require(shape.chunks == 1 || row->chunks, Exit::usage,
          "pipeline.virtual_stages is {}, but the schedule {} has one chunk per rank; use \"interleaved\"",
          shape.chunks, name);
  require(shape.chunks == 1 || shape.stages > 1, Exit::usage,
          "pipeline.virtual_stages is {} with a single stage; use 1", shape.chunks);
  Schedule schedule{shape, {}};
  for (int r = 0; r < shape.stages; ++r)
    schedule.ranks.push_back(with_transfers(row->generator(shape, r), shape, r));
  return schedule;
}

}  // namespace cleave::pipeline
