#include "core/mesh_shape.h"

#include <fmt/format.h>

namespace cleave {

std::string_view name_of(Axis axis) {
  constexpr std::string_view names[] = {"world", "pipe", "data", "sequence", "tensor"};
  return names[size_t(axis)];
}

std::string name_of(const RankGroup& group) {
  constexpr std::string_view purposes[] = {"", " activations", " gradients", " near", " across"};
  if (group.purpose == RankGroup::Purpose::tied) return "tied " + group.unit;
  return fmt::format("{}{}", name_of(group.axis), purposes[size_t(group.purpose)]);
}

RankRun MeshShape::members(Axis axis, const MeshPlace& p) const {
  switch (axis) {
    case Axis::world:
      return {0, size(), 1};
    case Axis::pipe:
      return {rank({0, p.data, p.sequence, p.tensor}), pipe, data * sequence * tensor};
    case Axis::data:
      return {rank({p.pipe, 0, 0, p.tensor}), sharers(), tensor};
    case Axis::sequence:
      return {rank({p.pipe, p.data, 0, p.tensor}), sequence, tensor};
    case Axis::tensor:
      return {rank({p.pipe, p.data, p.sequence, 0}), tensor, 1};
  }
  return {};
}

RankRun MeshShape::members(const RankGroup& group, const MeshPlace& p, int near) const {
  const RankRun all = members(group.axis, p);
  const int mine = all.index_of(rank(p));
  switch (group.purpose) {
    case RankGroup::Purpose::near:
      return all.piece(mine, near);
    case RankGroup::Purpose::across:
      return all.across(mine, near);
    case RankGroup::Purpose::tied:
      return members(Axis::world, p);
    default:
      return all;
  }
}

MeshCut cut_world(int64_t world, int64_t pipe, int64_t tensor, int64_t sequence) {
  MeshCut cut{.data = world, .refused = {}, .ranks = world};
  for (const auto& [axis, size] :
       {std::pair{Axis::pipe, pipe}, {Axis::tensor, tensor}, {Axis::sequence, sequence}}) {
    if (size < 1 || cut.data % size != 0) return {0, axis, cut.data};
    cut.data /= size;
  }
  return cut;
}

std::string divisors(int64_t n) {
  std::string text;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", d);
  return text;
}

}  // namespace cleave
