#include "runtime/step_batches.h"

namespace cleave::runtime {

StepBatches::StepBatches(const BatchSource& source, int micros, int first) {
  for (int micro = 0; micro < micros; ++micro) {
    Batch batch = source(first + micro);
    if (micros > 1)
      for (Tensor* t : {&batch.input, &batch.targets, &batch.documents}) *t = copy_of(*t);
    kept_.push_back(batch);
  }
}

Tensor StepBatches::copy_of(const Tensor& t) {
  if (!t.defined() || !t.has_memory()) return t;
  const char* from = static_cast<const char*>(t.raw());
  std::vector<char>& memory = memory_.emplace_back(from, from + t.bytes());
  return Tensor(memory.data(), t.dtype(), t.shape(), MemoryKind::host);
}

}  // namespace cleave::runtime
