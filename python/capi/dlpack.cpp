#include "python/capi/dlpack.h"

#include <memory>
#include <vector>

namespace cleave::capi {
namespace {

struct Owned {
  DLManagedTensor managed;
  std::vector<int64_t> shape, strides;
};

}  // namespace

DLManagedTensor* managed_tensor(void* data, DType type, const int64_t* shape, int dims, Device device,
                                bool turned) {
  CHECK(is_float(type) || type == DType::uint8,
        "tensor for another library: unsupported type (got {}, expected a float type or uint8)",
        name_of(type));
  auto owned = std::make_unique<Owned>();
  owned->shape.assign(shape, shape + dims);
  if (turned) {
    CHECK(dims == 2, "transposed tensor: must be a matrix (got {} dimensions)", dims);
    owned->strides = {1, shape[0]};
  }
  const DLDevice where = device.is_cuda() ? DLDevice{2, device.index} : DLDevice{1, 0};
  const uint8_t code = type == DType::bf16 ? 4 : type == DType::uint8 ? 1 : 2;
  const DLDataType element{code, uint8_t(8 * size_of(type)), 1};
  owned->managed = {.tensor = {.data = data,
                               .device = where,
                               .dims = dims,
                               .type = element,
                               .shape = owned->shape.data(),
                               .strides = turned ? owned->strides.data() : nullptr,
                               .byte_offset = 0},
                    .context = owned.get(),
                    .deleter = [](DLManagedTensor* self) { delete static_cast<Owned*>(self->context); }};
  return &owned.release()->managed;
}

}  // namespace cleave::capi
