#include "core/mesh_shape.h"

#include <fmt/format.h>

#include <iterator>

namespace cleave {

std::string_view name_of(Axis axis) {
  constexpr std::string_view names[] = {"world", "pipe", "data", "sequence", "tensor"};
  return names[size_t(axis)];
}

std::string name_of(const RankGroup& group) {
  constexpr std::string_view purposes[] = {"",        " activations", " gradients", " near",
                                           " across", " rounds",      " parts"};
  if (group.purpose == RankGroup::Purpose::tied) return "tied " + group.unit;
  return fmt::format("{}{}", name_of(group.axis), purposes[size_t(group.purpose)]);
}

int MeshShape::size() const { return members(Axis::world, {}).count; }
int MeshShape::sharers() const { return members(Axis::data, {}).count; }

int MeshShape::rank(const MeshPlace& p) const {
  int rank = 0;
  for (const MeshAxis& a : kMeshAxes) rank = rank * this->*a.size + p.*a.place;
  return rank;
}

MeshPlace MeshShape::place(int rank) const {
  MeshPlace p;
  for (auto a = std::rbegin(kMeshAxes); a != std::rend(kMeshAxes); ++a) {
    p.*a->place = rank % (this->*a->size);
    rank /= this->*a->size;
  }
  return p;
}

// The axes of a group are adjacent, so the distance of its ranks is the number of places of the axes inside
// them.
RankRun MeshShape::members(Axis axis, const MeshPlace& p) const {
  MeshPlace first = p;
  RankRun run;
  for (const MeshAxis& a : kMeshAxes) {
    const bool along = axis == Axis::world || axis == a.axis || (axis == Axis::data && a.shares);
    if (along) first.*a.place = 0;
    (along ? run.count : run.stride) *= this->*a.size;
    if (along) run.stride = 1;
  }
  run.first = rank(first);
  return run;
}

RankRun MeshShape::members(const RankGroup& group, const MeshPlace& p, int near) const {
  const RankRun all = members(group.axis, p);
  const int mine = all.index_of(rank(p));
  switch (group.purpose) {
    case RankGroup::Purpose::near:
      return all.piece(mine, near);
    case RankGroup::Purpose::across:
      return all.across(mine, near);
    case RankGroup::Purpose::parts:
      return all.across(mine, all.count / data);
    case RankGroup::Purpose::tied:
      return members(Axis::world, p);
    default:
      return all;
  }
}

std::string name_of(const MeshShape& shape) {
  std::string name;
  for (const MeshAxis& a : kMeshAxes)
    if (const int size = shape.*a.size; size != 1 || !a.shares || a.axis == Axis::data)
      name += fmt::format("{}{} {}", name.empty() ? "" : " x ", name_of(a.axis), size);
  return name;
}

AxisSet axes_behind(const MeshPlace& place) {
  AxisSet behind;
  for (const MeshAxis& a : kMeshAxes)
    if (place.*a.place > 0) behind.add(a.axis);
  return behind;
}

AxisSet sharing_axes(AxisSet cuts) {
  AxisSet sharing;
  for (const MeshAxis& a : kMeshAxes)
    if (a.shares) sharing.add(a.axis);
  return sharing.without(cuts);
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
