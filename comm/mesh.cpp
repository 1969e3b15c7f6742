#include "comm/mesh.h"

#include <algorithm>

namespace cleave::comm {

Mesh::Mesh(Communicator& world, MeshShape s) : shape(s) {
  const bool fits = std::ranges::all_of(kMeshAxes, [&](const MeshAxis& a) { return s.*a.size >= 1; });
  require(fits && s.size() == world.size(), Exit::usage,
          "{} = {} ranks, but this job has {}; start {} ranks or change a factor", name_of(s), s.size(),
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
