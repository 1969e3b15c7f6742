// Movement of bytes between memories, in stream order.
#pragma once
#include "device/stream.h"
#include "device/tensor.h"

namespace cleave {

// dst = src, equal types and numel, any memory kinds. Both must live until the work is done.
void copy(Tensor dst, Tensor src, Stream& stream);

}  // namespace cleave
