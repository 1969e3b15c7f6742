// The grid of a job's ranks, pipe x data x sequence x tensor, as arithmetic: who stands where, who is in a
// group with whom, and how a number of ranks divides. Nobody else computes a rank.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "core/axis.h"

namespace cleave {

// A group of ranks: along which axis its members stand, and what they meet for.
struct RankGroup {
  enum class Purpose : uint8_t {
    axis,         // whatever the axis is for
    activations,  // pipe: these travel up
    gradients,    // pipe: these travel down
    near,         // data: ranks that gather parameters among themselves
    across,       // data: those of the same index among their near ranks
    parts,        // data: those at the same place of the axes inside it, which cut what they have
    tied,         // pipe: stages that share a unit
  };
  Axis axis = Axis::world;
  Purpose purpose = Purpose::axis;
  std::string unit = {};  // that is tied

  bool operator==(const RankGroup&) const = default;
};
// For people and for files: "pipe", "data near", "tied wte".
std::string name_of(const RankGroup& group);

// Ranks at equal distances.
struct RankRun {
  int first = 0, count = 1, stride = 1;

  int operator[](int i) const { return first + i * stride; }
  int last() const { return (*this)[count - 1]; }
  int index_of(int rank) const { return (rank - first) / stride; }
  // Cut into pieces of n members: the piece that has member i, and the members of i's index in every piece.
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
  // Ranks that have the same layers of the same parameters: to whoever shards over them, those of an axis
  // inside the data axis are ranks of the data axis like others.
  int sharers() const;
  int rank(const MeshPlace& p) const;
  MeshPlace place(int rank) const;
  // The group along an axis that the rank at `p` is in, in the group's order; of the data axis the sharers.
  RankRun members(Axis axis, const MeshPlace& p) const;
  // The same of any group, with groups of `near` ranks; of stages that share a unit, which only the model
  // knows, all ranks.
  RankRun members(const RankGroup& group, const MeshPlace& p, int near) const;
  bool operator==(const MeshShape&) const = default;
};

// The axes of the grid, the outermost first. Tensor is innermost, so that its neighbours share a node.
struct MeshAxis {
  Axis axis;
  int MeshShape::*size;
  int MeshPlace::*place;
  bool shares = false;  // the data axis and, next to it, those inside it
};
inline constexpr MeshAxis kMeshAxes[] = {
    {Axis::pipe, &MeshShape::pipe, &MeshPlace::pipe},
    {Axis::data, &MeshShape::data, &MeshPlace::data, true},
    {Axis::sequence, &MeshShape::sequence, &MeshPlace::sequence, true},
    {Axis::tensor, &MeshShape::tensor, &MeshPlace::tensor},
};
// "pipe 2 x data 3 x tensor 1"; of the axes inside the data axis those of several ranks.
std::string name_of(const MeshShape& shape);
// The axes along which a rank is not the first.
AxisSet axes_behind(const MeshPlace& place);
// The axes whose ranks divide a unit's slices among them, when `cuts` have parts of its parameters each.
AxisSet sharing_axes(AxisSet cuts);

// A number of ranks, cut by three axes: what is left is data parallel.
struct MeshCut {
  int64_t data = 0;             // where all divide
  std::optional<Axis> refused;  // the first of pipe, tensor and sequence that does not divide ...
  int64_t ranks = 0;            // ... what the axes before it left of the world
};
MeshCut cut_world(int64_t world, int64_t pipe, int64_t tensor, int64_t sequence);

// "1, 2, 3, 6"
std::string divisors(int64_t n);

}  // namespace cleave
