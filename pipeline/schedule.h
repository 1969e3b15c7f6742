// Pipeline schedules as values: for every rank a list of instructions and nothing else, so that a schedule
// can be printed, compared, written to a file and proved (simulate.h) without a device. One stage gives plain
// gradient accumulation; there is no other training path.
//
// The model is cut into stages * chunks contiguous pieces. Rank r of the pipe holds the pieces r, stages + r,
// 2 * stages + r, ...: its chunks 0, 1, 2, ... (virtual stages). Activations travel up the pieces, gradients
// down, on channels of their own.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::pipeline {

enum class Op : uint8_t {
  forward,
  backward,         // both parts
  backward_input,   // the gradient of the chunk's input
  backward_weight,  // the gradients of its parameters, any time after backward_input
  send_activation,
  recv_activation,
  send_gradient,
  recv_gradient,
};
std::string_view name_of(Op op);

struct Instruction {
  Op op = Op::forward;
  int micro = 0;
  int chunk = 0;
  bool operator==(const Instruction&) const = default;
};
using InstructionList = std::vector<Instruction>;

struct ScheduleShape {
  int stages = 1;  // ranks of the pipe
  int micros = 1;  // micro-batches of a step; any number
  int chunks = 1;  // of a rank
  int pieces() const { return stages * chunks; }
  int piece(int rank, int chunk) const { return chunk * stages + rank; }
  int up(int rank) const { return (rank + 1) % stages; }
  int down(int rank) const { return (rank + stages - 1) % stages; }
  bool operator==(const ScheduleShape&) const = default;
};

struct Schedule {
  ScheduleShape shape;
  std::vector<InstructionList> ranks;
  bool operator==(const Schedule&) const = default;
};

// The computations of one rank in order, without transfers. The first, second and last take one chunk.
InstructionList gpipe(const ScheduleShape& shape, int rank);                     // arXiv 1811.06965
InstructionList one_forward_one_backward(const ScheduleShape& shape, int rank);  // arXiv 1806.03377
// arXiv 2104.04473, section 2.2. There micros is a multiple of stages; here the order for the next multiple
// is taken and what does not exist is left out, which cannot close a circle of waits. One chunk: 1F1B.
InstructionList interleaved(const ScheduleShape& shape, int rank);
// ZB-H1 of arXiv 2401.10241: 1F1B whose weight gradients fill the bubble, in the same memory as 1F1B's first
// stage.
InstructionList zero_bubble_h1(const ScheduleShape& shape, int rank);
// Evaluation: micro-batches one after the other, in groups of `stages` when there are several chunks.
InstructionList forward_only(const ScheduleShape& shape, int rank);

// Puts every receive directly before the computation that needs it and every send directly behind the one
// that makes it.
InstructionList with_transfers(const InstructionList& computations, const ScheduleShape& shape, int rank);

// A schedule that a configuration can name. A new one is a generator and a row of the table.
struct ScheduleRow {
  std::string_view name;
  InstructionList (*generator)(const ScheduleShape&, int rank);
  bool chunks;  // whether a rank may have several
};
const ScheduleRow* find_schedule(std::string_view name);  // null: there is none
const std::vector<std::string>& schedule_names();         // of training

// The whole schedule of this name or `forward_only`, with transfers. Error(usage) when the name is none or
// the shape is not one the schedule has.
Schedule make_schedule(std::string_view name, const ScheduleShape& shape);

}  // namespace cleave::pipeline
