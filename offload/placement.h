// Where each kind of training state has its home. Offload is a value of this struct, not a way to optimize:
// no optimizer and no layer knows the word.
#pragma once
#include "device/tensor.h"

namespace cleave {

struct Placement {
  MemoryKind optimizer = MemoryKind::device;  // master weights and moments; the update runs where they live
};

}  // namespace cleave
