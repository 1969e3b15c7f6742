// Pipeline schedules as values: a list of instructions per rank, so a schedule can be printed, compared,
// written to a file and proved (simulate.h) without a device. One stage is plain gradient accumulation; every
// training uses a schedule.
//
// The model is divided into stages * chunks contiguous pieces. Rank r of the pipe holds the pieces r, stages
// + r, 2 * stages + r, ...: its chunks 0, 1, 2, ... (virtual stages). Activations travel to the next piece,
// gradients to the previous one, on separate channels.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::pipeline {

enum class Op : uint8_t {
  forward,
  backward,         // both parts
  backward_input,   // gradient of the chunk's input
  backward_weight,  // gradients of its parameters, any time after backward_input
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
  int stages = 1;  // pipeline ranks
  int micros = 1;  // micro-batches per step; any number
  int chunks = 1;  // per rank
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

// Computations of one rank in order, without transfers. GPipe, 1F1B and ZB-H1 support one chunk only.
InstructionList gpipe(const ScheduleShape& shape, int rank);                     // arXiv 1811.06965
InstructionList one_forward_one_backward(const ScheduleShape& shape, int rank);  // arXiv 1806.03377
// arXiv 2104.04473, section 2.2. The paper requires micros to be a multiple of stages. Here the order is that
// of the next multiple without the missing micro-batches, which cannot introduce a deadlock. One chunk: 1F1B.
InstructionList interleaved(const ScheduleShape& shape, int rank);
// ZB-H1 of arXiv 2401.10241: 1F1B with weight gradients in the bubble, and the memory of 1F1B's first stage.
InstructionList zero_bubble_h1(const ScheduleShape& shape, int rank);
// Evaluation: micro-batches in order, in groups of `stages` if there are several chunks.
InstructionList forward_only(const ScheduleShape& shape, int rank);

// Inserts every receive directly before the computation that needs it, and every send directly after its
// computation.
InstructionList with_transfers(const InstructionList& computations, const ScheduleShape& shape, int rank);

// A schedule with a configuration name. To add one, write a generator and a row of the table.
struct ScheduleRow {
  std::string_view name;
  InstructionList (*generator)(const ScheduleShape&, int rank);
  bool chunks;  // supports several chunks per rank
};
const ScheduleRow* find_schedule(std::string_view name);  // null: unknown
const std::vector<std::string>& schedule_names();         // for training

// Returns the complete schedule of this name, or `forward_only`, with transfers. Throws Error(usage) if the
// name is unknown or the schedule does not support the shape.
Schedule make_schedule(std::string_view name, const ScheduleShape& shape);

}  // namespace cleave::pipeline
