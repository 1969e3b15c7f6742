// What launches take of a machine, counted where nothing runs: in a dry pass (Stream::Mode::dry). A plan
// predicts times from it.
#pragma once
#include <initializer_list>
#include <string_view>
#include <vector>

#include "device/tensor.h"

namespace cleave::kernels {

// The memory that a launch reads and writes, each operand as often as it is passed over when no cache helps,
// and the type of the elements that most of it is.
struct Traffic {
  DType type = DType::fp32;
  double bytes = 0;

  Traffic(DType t, double b) : type(t), bytes(b) {}
  // The first one's type; operands that are left out count nothing.
  Traffic(std::initializer_list<Tensor> operands) : type(operands.begin()->dtype()) {
    for (const Tensor& t : operands) bytes += t.defined() ? double(t.bytes()) : 0;
  }
};

// The least that a step has to move: every pass between two products - a norm, an activation, a sum - is done
// while one of them has its operand on registers. Then its result is written in place of the product's, and
// what it reads beside is all that it adds; an op that can be such a pass says how much by least(), which is
// negative where it makes the product's result smaller. Products, attention, embeddings and updates pass over
// each operand once, whatever is beside them.

// Launches of one op that go at one rate: of one type, and of matrix products and attention of one variant,
// which is what the op's variant() says.
struct Work {
  std::string_view op;  // "Matmul"
  DType type = DType::fp32;
  int64_t variant = 0;
  int64_t launches = 0;
  double flops = 0, bytes = 0;
  double least = 0;  // of the bytes, what remains with such passes on registers
};

// While it lives, counts what the calling thread launches on dry streams; one at a time.
class Tally {
 public:
  Tally();
  ~Tally();
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;

  const std::vector<Work>& work() const { return work_; }  // in the order of their first launch
  static Tally* current();
  void add(const Work& launch);

 private:
  std::vector<Work> work_;
};

template <class Op>
void add_to(Tally& tally, std::string_view name, const Op& op) {
  const Traffic traffic = op.traffic();
  Work work{.op = name, .type = traffic.type, .launches = 1, .bytes = traffic.bytes, .least = traffic.bytes};
  if constexpr (requires { op.least(); }) work.least = op.least().bytes;
  if constexpr (requires { op.flops(); }) work.flops = op.flops();
  if constexpr (requires { op.variant(); }) work.variant = op.variant();
  tally.add(work);
}

}  // namespace cleave::kernels
