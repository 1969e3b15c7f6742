// Counts the work of launches in a dry pass (Stream::Mode::dry). Plans predict times from it.
#pragma once
#include <initializer_list>
#include <string_view>
#include <vector>

#include "device/stream.h"
#include "device/tensor.h"

namespace cleave::kernels {

// Memory traffic of a launch without caches: bytes of each operand, counted once per access, and the element
// type of most of the traffic.
struct Traffic {
  DType type = DType::fp32;
  double bytes = 0;

  Traffic(DType t, double b) : type(t), bytes(b) {}
  // Uses the type of the first operand; undefined operands count nothing.
  Traffic(std::initializer_list<Tensor> operands) : type(operands.begin()->dtype()) {
    for (const Tensor& t : operands) bytes += t.defined() ? double(t.bytes()) : 0;
  }
};

// Minimum traffic of a step: each pass between two products (a norm, an activation, a sum) runs while a
// product has its operand in registers. Its result replaces the result of the product, so it adds only its
// other inputs. An op that can be such a pass reports this by least(), which is negative if it makes the
// product's result smaller. Products, attention, embeddings and updates always access each operand once.

// Launches of one op with one rate: the same type and, for matrix products and attention, the same variant().
struct Work {
  std::string_view op;  // "Matmul"
  DType type = DType::fp32;
  int64_t variant = 0;
  int64_t launches = 0;
  double flops = 0, bytes = 0;
  double least = 0;  // part of `bytes` that remains with such passes in registers
};

// Counts the calling thread's launches on dry streams during its lifetime. At most one per thread.
class Tally {
 public:
  Tally();
  ~Tally();
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;

  const std::vector<Work>& work() const { return work_; }  // in the order of the first launch
  static Tally* current();
  void add(const Work& launch);
  // Sets the stream of the next launches, for a WorkLog of the thread.
  void on(const Stream& stream) { stream_ = &stream; }

 private:
  std::vector<Work> work_;
  const Stream* stream_ = nullptr;
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
