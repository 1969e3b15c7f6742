// Ranks on a pipe x data x sequence x tensor grid, tensor innermost so that its neighbors share a node.
// Components receive one of these communicators, never the mesh, so they do not depend on other axes.
// Sequence-parallel ranks have the same samples and parameters, each with its part of the positions; sharding
// and sums treat them as ranks of the data axis.
#pragma once
#include <vector>

#include "comm/communicator.h"
#include "core/mesh_shape.h"

namespace cleave::comm {

// Ranks of an axis that divides parameters.
struct CuttingAxis {
  Axis axis;
  Communicator* ranks;
  // Between products, the axis' ranks have different rows, so gradients of undivided parameters are partial
  // sums over these rows.
  bool cuts_rows = false;
};

class Mesh {
 public:
  // Collective over `world`. Throws Error(usage) with the factors if world.size() is not shape.size().
  // `world` must outlive the mesh: an axis with all ranks is `world` itself. An axis of one rank is free.
  Mesh(Communicator& world, MeshShape shape);

  MeshShape shape;
  MeshPlace place;  // of this rank
  Communicator *pipe, *tensor;
  Communicator* data;      // x sequence: rank place.data * shape.sequence + place.sequence
  Communicator* sequence;  // a separate group; its calls do not wait for sums of gradients

 private:
  Communicator* axis(Communicator& world, Axis along);
  Communicator* own(Communicator& world, Axis along);
  std::vector<std::unique_ptr<Communicator>> own_;
};

}  // namespace cleave::comm
