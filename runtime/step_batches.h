// Micro-batches of a source, with copies of their memory.
#pragma once
#include <span>
#include <vector>

#include "device/batch.h"

namespace cleave::runtime {

class StepBatches {
 public:
  // Requests micro-batches `first` to `first + micros`, and copies them unless there is only one.
  StepBatches(const BatchSource& source, int micros, int first = 0);

  std::span<const Batch> all() const { return kept_; }

 private:
  Tensor copy_of(const Tensor& t);  // undefined if t is undefined

  std::vector<Batch> kept_;
  std::vector<std::vector<char>> memory_;
};

}  // namespace cleave::runtime
