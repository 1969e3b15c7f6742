#include "comm/mesh.h"

namespace cleave {

Mesh::Mesh(Communicator& world, MeshShape s) : shape(s) {
  require(s.pipe >= 1 && s.data >= 1 && s.tensor >= 1 && s.size() == world.size(), Exit::usage,
          "pipe {} x data {} x tensor {} = {} ranks, but this job has {}; start {} ranks or change a factor",
          s.pipe, s.data, s.tensor, s.size(), world.size(), s.size());
  const int t = world.rank() % s.tensor;
  const int d = world.rank() / s.tensor % s.data;
  const int p = world.rank() / s.tensor / s.data;
  pipe = world.split(d * s.tensor + t, p, "pipe");
  data = world.split(p * s.tensor + t, d, "data");
  tensor = world.split(p * s.data + d, t, "tensor");
}

}  // namespace cleave
