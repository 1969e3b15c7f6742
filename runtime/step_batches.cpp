#include "runtime/step_batches.h"

namespace cleave::runtime {

StepBatches::StepBatches(const BatchSource& source, int micros) : source_(source) {
  if (source.valid_targets()) {
    valid_targets_ = *source.valid_targets();
    return;
  }
  for (int micro = 0; micro < micros; ++micro) {
    const Batch batch = source(micro);
    valid_targets_ += batch.valid_targets;
    if (micros == 1)
      kept_.push_back(batch);
    else
      keep(batch);
  }
}

void StepBatches::keep(const Batch& batch) {
  Batch copy = batch;
  for (Tensor* t : {&copy.input, &copy.targets, &copy.documents}) *t = copy_of(*t);
  kept_.push_back(copy);
}

Tensor StepBatches::copy_of(const Tensor& t) {
  if (!t.defined() || !t.has_memory()) return t;
  const char* from = static_cast<const char*>(t.raw());
  std::vector<char>& memory = memory_.emplace_back(from, from + t.bytes());
  return Tensor(memory.data(), t.dtype(), t.shape(), MemoryKind::host);
}

}  // namespace cleave::runtime
