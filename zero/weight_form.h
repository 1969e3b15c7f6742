// The form in which weights travel between ranks, as a value: what a shard takes in bytes on the
// way, and the two kernels that bring it into the form and back. A shard that travels as it is takes none.
#pragma once
#include <memory>

#include "device/tensor.h"
#include "zero/store_options.h"

namespace cleave::zero {

class WeightForm {
 public:
  // The form of what is gathered for a use, as the options ask; and that of updated slices, which are
  // published as they are.
  static std::unique_ptr<WeightForm> of_use(const StoreOptions& options);
  static std::unique_ptr<WeightForm> of_publication(const StoreOptions& options);
  virtual ~WeightForm() = default;

  // What so many elements take on the way. 0: they travel as they are, and nothing else is called.
  virtual int64_t bytes(int64_t numel) const = 0;
  virtual void encode(Tensor bytes, Tensor shard, Stream& stream) const = 0;  // bytes: uint8, so many
  virtual void decode(Tensor shard, Tensor bytes, Stream& stream) const = 0;
};

}  // namespace cleave::zero
