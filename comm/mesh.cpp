#include "comm/mesh.h"

namespace cleave::comm {

Mesh::Mesh(Communicator& world, MeshShape s) : shape(s) {
  require(
      s.pipe >= 1 && s.data >= 1 && s.sequence >= 1 && s.tensor >= 1 && s.size() == world.size(), Exit::usage,
      "pipe {} x data {} x{} tensor {} = {} ranks, but this job has {}; start {} ranks or change a factor",
      s.pipe, s.data, s.sequence == 1 ? "" : fmt::format(" sequence {} x", s.sequence), s.tensor, s.size(),
      world.size(), s.size());
  place = s.place(world.rank());
  pipe = axis(world, Axis::pipe), data = axis(world, Axis::data), tensor = axis(world, Axis::tensor);
  sequence = own(world, Axis::sequence);
}

Communicator* Mesh::axis(Communicator& world, Axis along) {
  const int size = shape.members(along, place).count;
  return size == world.size() && size > 1 ? &world : own(world, along);
}

Communicator* Mesh::own(Communicator& world, Axis along) {
  const RankRun ranks = shape.members(along, place);
  const std::string name = name_of(RankGroup{along});
  own_.push_back(ranks.count == 1
                     ? self_communicator(name)
                     : world.split({ranks.first, ranks.index_of(world.rank()), ranks.count}, name));
  return own_.back().get();
}

}  // namespace cleave::comm
