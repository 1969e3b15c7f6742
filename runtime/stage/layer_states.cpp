#include "runtime/stage/layer_states.h"

#include <cmath>
#include <limits>
#include <set>

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave::runtime {
namespace {

// Returns the neutral element of the reduction.
double nothing_seen(const model::LayerState& s) {
  if (s.by == Reduction::sum) return 0;
  return s.dtype == DType::int64 ? -0x1p63 : -std::numeric_limits<double>::infinity();
}

void require_kept(const model::LayerState& s, const std::string& model) {
  require(!s.shape.empty(), Exit::usage,
          "state {} of a layer of {}: has no dimensions; use the shape {{1}} for a single value", s.name,
          model);
  require(s.dtype == DType::fp32 || s.dtype == DType::int64, Exit::usage,
          "state {} of a layer of {}: unsupported type (got {}, expected fp32, or int64 for counts)", s.name,
          model, name_of(s.dtype));
  require(s.dtype == DType::fp32 || (std::abs(s.begin) <= 0x1p53 && std::nearbyint(s.begin) == s.begin),
          Exit::usage, "state {} of a layer of {}: its int64 start value is not an integer (got {})", s.name,
          model, s.begin);
}

}  // namespace

LayerStates::LayerStates(const StageLayers& layers)
    : trains_(layers.shape().trains), layers_(layers.model().layers.size()) {
  std::set<std::string> names;
  for (const auto& layer : layers.model().layers)
    for (const model::LayerState& s : layer->states()) {
      require_kept(s, layers.model().name);
      require(names.insert(s.name).second, Exit::usage,
              "{}: two layer states have the name {}; name each after its layer", layers.model().name,
              s.name);
    }
  for (int c = 0; c < layers.chunks(); ++c)
    for (int l = 0; l < layers.layers(c); ++l) {
      OfLayer& of = layers_[size_t(layers.in_model(c, l))];
      of.layer = &layers.layer(c, l);
      of.specs = of.layer->states();
    }
}

void LayerStates::allocate(Memory& memory, Stream& stream) {
  for (OfLayer& of : layers_)
    for (const model::LayerState& s : of.specs) {
      Shape shape;
      for (const int64_t d : s.shape) shape.dims[size_t(shape.rank++)] = d;
      const auto take = [&] {
        return memory_
            .emplace_back(memory.allocate(MemoryKind::device, Category::layer_state, s.dtype, shape, s.name))
            .tensor();
      };
      const Tensor lasting = take();
      kernels::launch(kernels::Fill{.y = lasting, .value = s.begin}, stream);
      of.lasting.push_back({.lasting = lasting});
      of.seeing.push_back({.lasting = lasting, .seen = trains_ ? take() : Tensor()});
    }
}

void LayerStates::begin_step(Stream& compute) {
  for (const OfLayer& of : layers_)
    for (size_t i = 0; i < of.specs.size(); ++i)
      kernels::launch(kernels::Fill{.y = of.seeing[i].seen, .value = nothing_seen(of.specs[i])}, compute);
}

void LayerStates::join(std::span<comm::Communicator* const> of_rows, comm::Communicator& of_columns,
                       Stream& compute, Stream& comm) {
  if (memory_.empty()) return;
  comm.wait(compute.record());
  for (const OfLayer& of : layers_)
    for (size_t i = 0; i < of.specs.size(); ++i) {
      const auto reduce = [&](comm::Communicator& group) {
        group.all_reduce(of.seeing[i].seen, comm, {.what = of.specs[i].name, .by = of.specs[i].by});
      };
      for (comm::Communicator* group : of_rows) reduce(*group);
      if (of.specs[i].sees_columns) reduce(of_columns);
    }
  compute.wait(comm.record());
  for (const OfLayer& of : layers_)
    if (!of.specs.empty()) of.layer->join(of.seeing, compute);
}

std::vector<checkpoint::Record> LayerStates::records(Stream& compute) const {
  std::vector<checkpoint::Record> out;
  for (const OfLayer& of : layers_)
    for (size_t i = 0; i < of.specs.size(); ++i) {
      if (!of.specs[i].saved) continue;
      const Tensor flat = of.lasting[i].lasting.view({of.lasting[i].lasting.numel()});
      const auto move = [&compute](Tensor to, Tensor from) {
        copy(to, from, compute);
        compute.synchronize();
      };
      out.push_back({"layer_state",
                     of.specs[i].name,
                     of.specs[i].shape,
                     {{0, flat.numel()}},
                     [=](Range r, Tensor memory) { move(memory, flat.slice(r)); },
                     [=](Range r, Tensor memory) { move(flat.slice(r), memory); },
                     of.specs[i].dtype,
                     of.specs[i].may_be_missing});
    }
  return out;
}

Tensor LayerStates::find(const std::string& name) const {
  for (const OfLayer& of : layers_)
    for (size_t i = 0; i < of.specs.size(); ++i)
      if (of.specs[i].name == name) return of.lasting[i].lasting;
  return {};
}

}  // namespace cleave::runtime
