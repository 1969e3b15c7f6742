// The grid of a job's ranks, pipe x data x sequence x tensor, as arithmetic: who stands where.
#pragma once

namespace cleave {

struct MeshPlace {
  int pipe = 0, data = 0, sequence = 0, tensor = 0;
  bool operator==(const MeshPlace&) const = default;
};

struct MeshShape {
  int pipe = 1, data = 1, sequence = 1, tensor = 1;
  int size() const { return pipe * data * sequence * tensor; }
  MeshPlace place(int rank) const {
    const int cell = rank / tensor;
    return {cell / sequence / data, cell / sequence % data, cell % sequence, rank % tensor};
  }
};

}  // namespace cleave
