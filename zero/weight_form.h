// Wire format of weights: the bytes per shard, and the encode and decode kernels. An unencoded shard needs no
// bytes.
#pragma once
#include <memory>

#include "device/tensor.h"
#include "zero/store_options.h"

namespace cleave::zero {

class WeightForm {
 public:
  // of_use: the format of gathers for a use, from the options. of_publication: the format of updated slices,
  // always unencoded.
  static std::unique_ptr<WeightForm> of_use(const StoreOptions& options);
  static std::unique_ptr<WeightForm> of_publication(const StoreOptions& options);
  virtual ~WeightForm() = default;

  // Returns the bytes that `numel` elements take on the wire. 0: sent unencoded; encode and decode are not
  // called.
  virtual int64_t bytes(int64_t numel) const = 0;
  virtual void encode(Tensor bytes, Tensor shard, Stream& stream) const = 0;  // bytes: uint8 [bytes(numel)]
  virtual void decode(Tensor shard, Tensor bytes, Stream& stream) const = 0;
};

}  // namespace cleave::zero
