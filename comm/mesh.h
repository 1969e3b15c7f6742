// Ranks on a pipe x data x sequence x tensor grid, tensor innermost so that its neighbours share a node.
// Components receive one of these communicators, never the mesh: they cannot know that the other axes exist.
// Ranks of a sequence work on the same samples, each on its part of the positions, with the same parameters;
// so to whoever shards and sums over `data` they are ranks of the data axis like others.
#pragma once
#include <vector>

#include "comm/communicator.h"
#include "core/mesh_shape.h"

namespace cleave::comm {

// The ranks of an axis that parameters are cut over.
struct CuttingAxis {
  Axis axis;
  Communicator* ranks;
  // Between products the axis' ranks have different rows, so the gradients of what it does not cut are of
  // these.
  bool cuts_rows = false;
};

class Mesh {
 public:
  // Collective over world, whose size must be shape.size() (Error(usage) names the factors otherwise). world
  // must outlive the mesh: an axis that has all its ranks is world itself. An axis of one rank costs nothing.
  Mesh(Communicator& world, MeshShape shape);

  MeshShape shape;
  MeshPlace place;  // of this rank
  Communicator *pipe, *tensor;
  Communicator* data;      // x sequence: rank place.data * shape.sequence + place.sequence
  Communicator* sequence;  // a group of its own, whose calls wait for no sum of gradients

 private:
  Communicator* axis(Communicator& world, Axis along);
  Communicator* own(Communicator& world, Axis along);
  std::vector<std::unique_ptr<Communicator>> own_;
};

}  // namespace cleave::comm
