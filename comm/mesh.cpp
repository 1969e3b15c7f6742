#include "comm/mesh.h"

namespace cleave {

Mesh::Mesh(Communicator& world, MeshShape s) : shape(s) {
  require(
      s.pipe >= 1 && s.data >= 1 && s.sequence >= 1 && s.tensor >= 1 && s.size() == world.size(), Exit::usage,
      "pipe {} x data {} x{} tensor {} = {} ranks, but this job has {}; start {} ranks or change a factor",
      s.pipe, s.data, s.sequence == 1 ? "" : fmt::format(" sequence {} x", s.sequence), s.tensor, s.size(),
      world.size(), s.size());
  place = s.place(world.rank());
  const int row = place.data * s.sequence + place.sequence, rows = s.data * s.sequence;
  pipe = axis(world, s.pipe, row * s.tensor + place.tensor, place.pipe, "pipe");
  data = axis(world, rows, place.pipe * s.tensor + place.tensor, row, "data");
  tensor = axis(world, s.tensor, place.pipe * rows + row, place.tensor, "tensor");
  const int group = (place.pipe * s.data + place.data) * s.tensor + place.tensor;
  own_.push_back(s.sequence == 1 ? self_communicator("sequence")
                                 : world.split({group, place.sequence, s.sequence}, "sequence"));
  sequence = own_.back().get();
}

Communicator* Mesh::axis(Communicator& world, int size, int color, int rank, const char* name) {
  if (size == world.size() && size > 1) return &world;
  own_.push_back(size == 1 ? self_communicator(name) : world.split({color, rank, size}, name));
  return own_.back().get();
}

}  // namespace cleave
