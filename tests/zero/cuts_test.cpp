// Parameters cut by two axes, the tensor axis and one inside the data axis, on grids with one or several
// ranks per axis: ranks count, save and sum each element of the whole parameters once.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "comm/mesh.h"
#include "config_schema/ds_config.h"
#include "zero/sharded_optimizer.h"

namespace cleave::zero {
namespace {

// A parameter, and the index in the whole of each local element, by an independent formula.
struct Declared {
  ParamSpec spec;
  std::vector<int64_t> elements;
};

struct Coordinates {
  MeshShape shape;
  MeshPlace place;
  Cut by(Axis axis, int dim, std::vector<int64_t> extents) const {
    const auto along = std::ranges::find(kMeshAxes, axis, &MeshAxis::axis);
    return {axis,
            {.dim = dim,
             .extents = std::move(extents),
             .rank = place.*(along->place),
             .ranks = shape.*(along->size)}};
  }
};

Declared whole(const std::string& name, int64_t numel, bool decay) {
  Declared d{{name, {numel}, {}, decay}, {}};
  for (int64_t i = 0; i < numel; ++i) d.elements.push_back(i);
  return d;
}

// [6, 18, 2]: the inner axis cuts rows; the tensor axis cuts columns in two blocks of 6 and 12.
Declared experts(const Coordinates& c, const std::string& name, bool decay) {
  const int64_t rows = 6 / c.shape.sequence, first = 6 / c.shape.tensor, second = 12 / c.shape.tensor;
  Declared d{{name,
              {rows, first + second, 2},
              {},
              decay,
              {c.by(Axis::sequence, 0, {6}), c.by(Axis::tensor, 1, {6, 12})}},
             {}};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < first + second; ++k)
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t row = c.place.sequence * rows + r,
                      column =
                          k < first ? c.place.tensor * first + k : 6 + c.place.tensor * second + k - first;
        d.elements.push_back((row * 18 + column) * 2 + i);
      }
  return d;
}

// [12, 3]: the inner axis cuts rows, and the tensor axis cuts its part further.
Declared nested(const Coordinates& c, const std::string& name) {
  const int64_t outer = 12 / c.shape.sequence, rows = outer / c.shape.tensor;
  Declared d{{name, {rows, 3}, {}, false, {c.by(Axis::sequence, 0, {12}), c.by(Axis::tensor, 0, {outer})}},
             {}};
  const int64_t begin = (c.place.sequence * outer + c.place.tensor * rows) * 3;
  for (int64_t i = 0; i < rows * 3; ++i) d.elements.push_back(begin + i);
  return d;
}

// [4, 6]: one axis cuts columns.
Declared columns(const Coordinates& c, const std::string& name, Axis axis) {
  const Cut cut = c.by(axis, 1, {6});
  const int64_t width = 6 / cut.split.ranks;
  Declared d{{name, {4, width}, {}, true, {cut}}, {}};
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t k = 0; k < width; ++k) d.elements.push_back(r * 6 + cut.split.rank * width + k);
  return d;
}

using DeclaredUnit = std::vector<Declared>;
std::vector<DeclaredUnit> units_of(const Coordinates& c) {
  return {{whole("dense.bias", 5, false), columns(c, "dense.w", Axis::tensor), whole("dense.table", 7, true)},
          {experts(c, "experts.w", true), whole("experts.router", 9, true),
           columns(c, "experts.rows", Axis::sequence), columns(c, "experts.columns", Axis::tensor),
           nested(c, "experts.nested"), experts(c, "experts.b", false)}};
}

double gradient_of(const std::string& name, int64_t element) {
  return float(std::sin(double(element) + double(std::hash<std::string>()(name) % 97)));
}

std::map<std::string, int64_t> whole_sizes() {
  std::map<std::string, int64_t> sizes;
  for (const DeclaredUnit& unit : units_of({}))
    for (const Declared& d : unit) sizes[d.spec.name] = int64_t(d.elements.size());
  return sizes;
}

double whole_square(const std::string& name) {
  double sum = 0;
  for (int64_t i = 0; i < whole_sizes().at(name); ++i) sum += gradient_of(name, i) * gradient_of(name, i);
  return sum;
}

// One rank of the grid. Its first unit is sharded over the data axis including the inner one; the second over
// the rest of it without the axis that cuts its parameters.
struct CutRank {
  CutRank(comm::Communicator& world, const MeshShape& shape, int stage)
      : mesh(world, shape),
        units(units_of({shape, mesh.place})),
        self(comm::self_communicator()),
        others(others_of(world)),
        store(memory, {.behind = axes_behind(mesh.place).without({Axis::pipe})}, compute, compute) {
    cutting = {{Axis::tensor, mesh.tensor}, {Axis::sequence, mesh.sequence}};
    for (const DeclaredUnit& unit : units) {
      UnitSpec spec{store.units() == 0 ? "dense" : "experts", {}};
      for (const Declared& d : unit) spec.params.push_back(d.spec);
      store.add_unit(spec, sharding_of_stage(stage, store.units() == 0 ? *mesh.data : *others, *self));
    }
    store.weights().commit(), store.gradients().commit();
    optimizer = std::make_unique<ShardedOptimizer>(memory, store, optim::make_optimizer({}),
                                                   offload::Placement(), cutting);
    for (int u = 0; u < store.units(); ++u) write_gradients(u);
  }
  std::unique_ptr<comm::Communicator> others_of(comm::Communicator& world) const {
    MeshPlace first = mesh.place;
    first.data = 0;
    return world.split({mesh.shape.rank(first), mesh.place.data, mesh.shape.data}, "others");
  }
  void write_gradients(int u) {
    const Range slice = store.slice(u);
    const std::span<float> to = store.gradient_slice(u).span<float>();
    for (int p = 0; p < store.layout(u).params(); ++p)
      for (int64_t i = 0; i < store.layout(u).range(p).size(); ++i) {
        const Declared& d = units[size_t(u)][size_t(p)];
        if (const int64_t at = store.layout(u).range(p).begin + i; slice.begin <= at && at < slice.end)
          to[size_t(at - slice.begin)] = float(gradient_of(d.spec.name, d.elements[size_t(i)]));
      }
  }

  Memory memory;
  Stream compute;
  comm::Mesh mesh;
  std::vector<DeclaredUnit> units;
  std::unique_ptr<comm::Communicator> self, others;
  std::vector<comm::CuttingAxis> cutting;
  ParameterStore store;
  std::unique_ptr<ShardedOptimizer> optimizer;
};

constexpr MeshShape kGrids[] = {{},
                                {.data = 2, .sequence = 2, .tensor = 2},
                                {.data = 1, .sequence = 3, .tensor = 2},
                                {.data = 2, .sequence = 1, .tensor = 3},
                                {.data = 1, .sequence = 2, .tensor = 1},
                                {.data = 3, .sequence = 2, .tensor = 1}};

void in_every_layout(
    const std::function<void(CutRank&)>& body, const std::function<void()>& after = [] {}) {
  for (const MeshShape& shape : kGrids)
    for (int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, stage {}", name_of(shape), stage));
      comm::run_ranks(shape.size(), [&](comm::Communicator& world) {
        CutRank rank(world, shape, stage);
        body(rank);
      });
      after();
    }
}

TEST(Cuts, OfTwoAxesGiveTheNormOfTheWholeParameters) {
  std::array<double, 2> want{};
  for (const auto& [name, numel] : whole_sizes()) want[name.starts_with("experts")] += whole_square(name);
  in_every_layout([&](CutRank& r) {
    int64_t parts = 0;
    std::vector<int64_t> ends;
    for (int u = 0; u < 2; ++u) ends.push_back(parts += int64_t(r.store.counted(u).size()));
    std::vector<double> sums(size_t(parts), -1.0);
    const Tensor all(sums.data(), DType::fp64, {parts}, MemoryKind::device);
    r.optimizer->square_gradients(all, r.compute);
    r.compute.synchronize();
    std::vector<double> of_units{0, 0};
    for (int64_t i = 0; i < parts; ++i) of_units[i < ends[0] ? 0 : 1] += sums[size_t(i)];
    const Tensor of_both(of_units.data(), DType::fp64, {2}, MemoryKind::host);
    for (const comm::CuttingAxis& a : r.cutting) a.ranks->all_reduce(of_both, r.compute, {.what = "norm"});
    r.compute.synchronize();
    for (size_t u = 0; u < 2; ++u) EXPECT_NEAR(of_units[u] / want[u], 1, 1e-6) << u;
  });
}

TEST(Cuts, OfTwoAxesAreSavedAsEachElementOfTheWholeOnce) {
  std::mutex mutex;
  std::map<std::string, std::map<int64_t, int>> saved;
  const auto save = [&](CutRank& r) {
    for (int u = 0; u < 2; ++u)
      for (const Range& part : r.store.counted(u)) {
        const Range flat = part.shifted(r.store.slice(u).begin);
        for (const FlatLayout::Piece& p : r.store.layout(u).pieces(flat))
          for (int64_t i = 0; i < p.elements.size(); ++i) {
            const Declared& d = r.units[size_t(u)][size_t(p.param)];
            const int64_t local = flat.begin + p.offset + i - r.store.layout(u).range(p.param).begin;
            EXPECT_EQ(p.elements.begin + i, d.elements[size_t(local)]) << d.spec.name;
            EXPECT_EQ(d.spec.whole_numel(), whole_sizes().at(d.spec.name));
            const std::lock_guard lock(mutex);
            ++saved[d.spec.name][p.elements.begin + i];
          }
      }
  };
  in_every_layout(save, [&] {
    for (const auto& [name, numel] : whole_sizes()) {
      EXPECT_EQ(int64_t(saved[name].size()), numel) << name;
      for (const auto& [element, times] : saved[name]) EXPECT_EQ(times, 1) << name << " " << element;
    }
    saved.clear();
  });
}

TEST(Cuts, OfTwoAxesGiveSumsOverWholeParameters) {
  in_every_layout([](CutRank& r) {
    WholeParameters whole(r.memory, r.store, r.cutting, {});
    whole.clear(r.compute, r.compute);
    for (int u = 0; u < 2; ++u)
      for (int p = 0; p < r.store.layout(u).params(); ++p) {
        const Range mine = intersect(r.store.layout(u).range(p), r.store.slice(u));
        const std::span<double> to = whole.slot(u, p, false).span<double>();
        for (int64_t at = mine.begin; at < mine.end; ++at) {
          const double x =
              double(r.store.gradient_slice(u).span<float>()[size_t(at - r.store.slice(u).begin)]);
          to[0] += x * x, to[1] += 1;
        }
      }
    whole.add_up(r.compute, r.compute);
    for (int u = 0; u < 2; ++u)
      for (int p = 0; p < r.store.layout(u).params(); ++p) {
        const std::string& name = r.store.layout(u).param(p).name;
        EXPECT_NEAR(whole.sums(u, p)[0] / whole_square(name), 1, 1e-12) << name;
        EXPECT_EQ(whole.sums(u, p)[1], double(whole_sizes().at(name))) << name;
      }
  });
}

}  // namespace
}  // namespace cleave::zero
