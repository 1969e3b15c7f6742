// Ranks on a pipe x data x tensor grid, tensor innermost so that its neighbours share a node. Components
// receive one of these communicators, never the mesh: they cannot know that the other axes exist.
#pragma once
#include "comm/communicator.h"

namespace cleave {

struct MeshShape {
  int pipe = 1, data = 1, tensor = 1;
  int size() const { return pipe * data * tensor; }
};

struct Mesh {
  // Collective over world, whose size must be shape.size() (Error(usage) names the factors otherwise).
  Mesh(Communicator& world, MeshShape shape);

  MeshShape shape;
  std::unique_ptr<Communicator> pipe, data, tensor;
};

}  // namespace cleave
