// The grid of ranks, pipe x data x sequence x tensor, as arithmetic: places, groups, and divisions of a
// number of ranks. All code that computes a rank calls this.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "core/axis.h"

namespace cleave {

// A group of ranks: the axis of its members and its purpose.
struct RankGroup {
  enum class Purpose : uint8_t {
    axis,         // all traffic of the axis
    activations,  // pipe: activations to later stages
    gradients,    // pipe: gradients to earlier stages
    near,         // data: consecutive ranks that gather parameters from each other
    across,       // data: ranks with equal index among their near ranks
    rounds,       // data: messages of hosts on the units that ranks need
    parts,        // data: ranks at equal places of the inner axes, which divide parameters
    tied,         // pipe: stages that share a unit
  };
  Axis axis = Axis::world;
  Purpose purpose = Purpose::axis;
  std::string unit = {};  // the tied unit

  bool operator==(const RankGroup&) const = default;
};
// For messages and files: "pipe", "data near", "tied wte".
std::string name_of(const RankGroup& group);

// Ranks at equal distances.
struct RankRun {
  int first = 0, count = 1, stride = 1;

  int operator[](int i) const { return first + i * stride; }
  int last() const { return (*this)[count - 1]; }
  int index_of(int rank) const { return (rank - first) / stride; }
  // Divided into pieces of n members: the piece that contains member i, and the members of all pieces with
  // i's index.
  RankRun piece(int i, int n) const { return {(*this)[i - i % n], n, stride}; }
  RankRun across(int i, int n) const { return {(*this)[i % n], count / n, stride * n}; }
  bool operator==(const RankRun&) const = default;
};

struct MeshPlace {
  int pipe = 0, data = 0, sequence = 0, tensor = 0;
  bool operator==(const MeshPlace&) const = default;
};

struct MeshShape {
  int pipe = 1, data = 1, sequence = 1, tensor = 1;

  int size() const;
  // Number of ranks that hold the same layers and parameters. For sharding, the axes inside the data axis
  // count as part of the data axis.
  int sharers() const;
  int rank(const MeshPlace& p) const;
  MeshPlace place(int rank) const;
  // The group along an axis that contains the rank at `p`, in group order. The group of the data axis is the
  // sharers.
  RankRun members(Axis axis, const MeshPlace& p) const;
  // The same for any group, with groups of `near` ranks. For stages that share a unit it returns all ranks,
  // because only the model knows the stages.
  RankRun members(const RankGroup& group, const MeshPlace& p, int near) const;
  bool operator==(const MeshShape&) const = default;
};

// Axes of the grid, outermost first. Tensor is innermost, so its neighbors share a node.
struct MeshAxis {
  Axis axis;
  int MeshShape::*size;
  int MeshPlace::*place;
  bool shares = false;  // the data axis and the axes inside it, which follow it
};
inline constexpr MeshAxis kMeshAxes[] = {
    {Axis::pipe, &MeshShape::pipe, &MeshPlace::pipe},
    {Axis::data, &MeshShape::data, &MeshPlace::data, true},
    {Axis::sequence, &MeshShape::sequence, &MeshPlace::sequence, true},
    {Axis::tensor, &MeshShape::tensor, &MeshPlace::tensor},
};
// "pipe 2 x data 3 x tensor 1"; axes inside the data axis only if they have several ranks.
std::string name_of(const MeshShape& shape);
// Axes along which the rank is not the first.
AxisSet axes_behind(const MeshPlace& place);
// Axes that divide a unit's slices among their ranks, if `cuts` are the axes that divide its parameters.
AxisSet sharing_axes(AxisSet cuts);

// Divides a number of ranks by three axes; the quotient is the data-parallel size.
struct MeshCut {
  int64_t data = 0;             // if all axes divide the world
  std::optional<Axis> refused;  // first of pipe, tensor and sequence that does not divide `ranks`
  int64_t ranks = 0;            // quotient of the world and the axes before `refused`
};
MeshCut cut_world(int64_t world, int64_t pipe, int64_t tensor, int64_t sequence);

// "1, 2, 3, 6"
std::string divisors(int64_t n);

}  // namespace cleave
