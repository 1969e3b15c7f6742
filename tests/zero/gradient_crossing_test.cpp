// Sums of gradients over ranks by a form other than an elementwise collective: signs with a scale and error
// feedback to the next step.
#include "zero/gradient_crossing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "tests/scratch.h"

namespace cleave::zero {
namespace {

constexpr int64_t kWhole = 37;

// A block travels as its scale and one byte per element. Everything else is as with floats.
class Signs final : public GradientForm {
 public:
  double left_scale(double scale) const override { return floats_->left_scale(scale); }
  bool takes_any_number() const override { return true; }
  double grid_of_losses() const override { return 0; }
  void begin_step(double, Stream&) override {}
  int64_t apart_numel(int64_t) const override { return 0; }
  void encode(Tensor, Tensor, bool, Stream&) const override {}
  void add(Tensor sum, Tensor x, Stream& stream) const override { floats_->add(sum, x, stream); }
  int64_t decoded_numel(int64_t) const override { return 0; }
  void decode(Tensor, Tensor, Stream&) const override {}
  DType type_of_squares() const override { return DType::fp64; }
  int64_t squares_of_part() const override { return 1; }
  int64_t squares_of_all() const override { return 0; }
  void square(Tensor, Tensor, Stream&) const override {}
  void square_all(Tensor, Stream&) const override {}
  std::vector<double> squared_norms(Tensor, Stream&) const override { return {}; }

  Needs crossing(int64_t numel, int ranks) const override {
    return {.kept = {.numel = numel},
            .travelling = std::max(2 * ranks * bytes(ceil_div(numel, ranks)), ranks * bytes(numel))};
  }
  void reduce_scatter(const Crossed& c, Stream& stream) const override {
    const int64_t numel = c.sum.numel(), all = bytes(numel) * c.ranks.size();
    const Tensor arrived = c.travelling.slice({0, all}), leaving = c.travelling.slice({all, 2 * all});
    for (int r = 0; r < c.ranks.size(); ++r) {
      const Range block = Range{0, numel}.shifted(r * numel);
      encode_block(message(leaving, r, numel), c.terms.slice(block), c.kept.slice(block), stream);
    }
    c.ranks.all_to_all(arrived, leaving, stream, c.call);
    add_blocks(c.sum, arrived, c.ranks.size(), stream);
  }
  void all_reduce(const Crossed& c, Stream& stream) const override {
    const int64_t numel = c.sum.numel();
    const Tensor all = c.travelling.slice({0, bytes(numel) * c.ranks.size()});
    const Tensor mine = message(all, c.ranks.rank(), numel);
    encode_block(mine, c.terms, c.kept, stream);
    c.ranks.all_gather(all, mine, stream, c.call);
    add_blocks(c.sum, all, c.ranks.size(), stream);
  }

  static int64_t bytes(int64_t numel) { return 4 + round_up(numel, 4); }

 private:
  static Tensor message(const Tensor& all, int r, int64_t numel) {
    return all.slice(Range{0, bytes(numel)}.shifted(r * bytes(numel)));
  }
  static void encode_block(const Tensor& to, const Tensor& x, const Tensor& kept, Stream& stream) {
    stream.enqueue([=] {
      double size = 0;
      for (int64_t i = 0; i < x.numel(); ++i) size += std::fabs(kept.as<float>()[i] += x.as<float>()[i]);
      const auto scale = float(size / double(x.numel()));
      std::memcpy(to.raw(), &scale, 4);
      for (int64_t i = 0; i < x.numel(); ++i) {
        float& left = kept.as<float>()[i];
        to.as<uint8_t>()[4 + i] = left >= 0;
        left -= left >= 0 ? scale : -scale;
      }
    });
  }
  static void add_blocks(const Tensor& sum, const Tensor& messages, int ranks, Stream& stream) {
    stream.enqueue([=] {
      for (int64_t i = 0; i < sum.numel(); ++i) sum.as<float>()[i] = 0;
      for (int r = 0; r < ranks; ++r) {
        const Tensor from = message(messages, r, sum.numel());
        float scale = 0;
        std::memcpy(&scale, from.raw(), 4);
        for (int64_t i = 0; i < sum.numel(); ++i)
          sum.as<float>()[i] += from.as<uint8_t>()[4 + i] ? scale : -scale;
      }
    });
  }

  std::unique_ptr<GradientForm> floats_ = GradientForm::of({});
};

float crossed_gradient(int rank, int step, int64_t i) {
  return float(std::sin(double(i + 1) * 0.9 + rank) + 0.4 * std::cos(double(step) * 2.1 + double(i)) + 0.1);
}

using Values = std::vector<double>;

// Reference in double precision for all ranks of a group at once: the error of each rank, by group name.
class Reference {
 public:
  // Sums the ranks' terms; each of `blocks` equal parts travels with a separate scale.
  Values sum(const std::string& group, const std::vector<Values>& terms, size_t blocks) {
    std::vector<Values>& left = left_[group];
    left.resize(terms.size(), Values(terms[0].size(), 0));
    Values out(terms[0].size(), 0);
    const size_t block = out.size() / blocks;
    for (size_t r = 0; r < terms.size(); ++r)
      for (size_t begin = 0; begin < out.size(); begin += block) {
        double scale = 0;
        for (size_t i = begin; i < begin + block; ++i) {
          left[r][i] += terms[r][i];
          scale += std::fabs(left[r][i]) / double(block);
        }
        for (size_t i = begin; i < begin + block; ++i) {
          const double sign = left[r][i] >= 0 ? scale : -scale;
          out[i] += sign, left[r][i] -= sign;
        }
      }
    return out;
  }

 private:
  std::map<std::string, std::vector<Values>> left_;
};

enum class Kind { stage_0, stage_1, stage_2, hybrid };

// A rank's unit with its gradients to reduce.
struct Crossing {
  Crossing(comm::Communicator& world, Kind kind, Memory::Mode mode = Memory::Mode::real)
      : near(world.split({world.rank() / 2, world.rank() % 2, std::min(2, world.size())}, "near")),
        across(world.split({world.rank() % 2, world.rank() / 2, world.size() / 2}, "across")),
        memory({}, mode),
        stream(mode == Memory::Mode::dry ? Stream::Mode::discard : Stream::Mode::inline_),
        unit{FlatLayout({"u", {{"u.w", {kWhole}, {}, true}}}, world.size()),
             kind == Kind::hybrid ? hybrid_sharding({near.get(), across.get()}, *self)
                                  : sharding_of_stage(int(kind), world, *self)},
        crossing(memory, {}, form, stream),
        full(size_t(unit.layout.numel())),
        shard(size_t(unit.layout.numel() / unit.sharding.gradient_shards())) {
    crossing.add_unit(unit, int64_t(shard.size()));
    crossing.commit(MemoryKind::device);
  }
  // Returns this rank's slice of the sum after a step.
  Values step(int rank, int step) {
    for (size_t i = 0; i < full.size(); ++i) full[i] = crossed_gradient(rank, step, int64_t(i));
    const Tensor sum = view(shard);
    if (unit.sharding.buckets())
      crossing.reduce(unit, sum, view(full), false);
    else
      shard = full;
    crossing.finish(unit, sum);
    stream.synchronize();
    const int64_t n = unit.slice_numel(), at = unit.sharding.reduce_each_step->rank() * n;
    return {shard.begin() + at, shard.begin() + at + n};
  }
  static Tensor view(std::vector<float>& values) {
    return {values.data(), DType::fp32, {int64_t(values.size())}};
  }

  std::unique_ptr<comm::Communicator> self = comm::self_communicator(), near, across;
  Memory memory;
  Stream stream;
  StoredUnit unit;
  Signs form;
  GradientCrossing crossing;
  std::vector<float> full, shard;
};

// Over all ranks, in flat order.
Values reference_step(Reference& reference, Kind kind, int ranks, int step, size_t numel) {
  std::vector<Values> terms;
  for (int r = 0; r < ranks; ++r) {
    terms.emplace_back();
    for (size_t i = 0; i < numel; ++i) terms.back().push_back(crossed_gradient(r, step, int64_t(i)));
  }
  if (kind != Kind::hybrid) return reference.sum("data", terms, kind == Kind::stage_0 ? 1 : size_t(ranks));
  const Values first = reference.sum("near 0", {terms[0], terms[1]}, 2),
               second = reference.sum("near 1", {terms[2], terms[3]}, 2);
  const auto half = long(numel / 2);
  Values out = reference.sum(
      "across 0", {{first.begin(), first.begin() + half}, {second.begin(), second.begin() + half}}, 1);
  const Values rest = reference.sum(
      "across 1", {{first.begin() + half, first.end()}, {second.begin() + half, second.end()}}, 1);
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

TEST(GradientCrossing, GivesAFormTheRanksAndItsKeptStateForEverySum) {
  for (const Kind kind : {Kind::stage_0, Kind::stage_1, Kind::stage_2, Kind::hybrid})
    for (const int ranks : {2, 4})
      if (kind != Kind::hybrid || ranks == 4)
        comm::run_ranks(ranks, [&](comm::Communicator& world) {
          Crossing c(world, kind);
          Reference reference;
          for (int step = 0; step < 6; ++step) {
            const Values got = c.step(world.rank(), step);
            const Values want = reference_step(reference, kind, ranks, step, c.full.size());
            const size_t at = size_t(c.unit.slice().begin);
            for (size_t i = 0; i < got.size(); ++i)
              ASSERT_NEAR(got[i], want[at + i], 1e-5)
                  << "kind " << int(kind) << ", " << ranks << " ranks, step " << step << ", element " << i;
          }
        });
}

// With a constant gradient, the mean of the received values approaches the sum as 1 / steps.
TEST(GradientCrossing, KeepsTheErrorOfAFormForLaterSteps) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    Crossing c(world, Kind::stage_2);
    constexpr int kSteps = 4000;
    Values sum(size_t(c.unit.slice_numel()), 0);
    double first = 0, last = 0;
    for (int step = 0; step < kSteps; ++step) {
      const Values got = c.step(world.rank(), 0);
      double worst = 0;
      for (size_t i = 0; i < sum.size(); ++i) {
        const int64_t at = c.unit.slice().begin + int64_t(i);
        sum[i] += got[i];
        worst = std::max(
            worst, std::fabs(sum[i] / (step + 1) - crossed_gradient(0, 0, at) - crossed_gradient(1, 0, at)));
      }
      (step == 0 ? first : last) = worst;
    }
    EXPECT_GT(first, 0.3) << "signs say as much as floats here";
    EXPECT_LT(last, 0.005);
  });
}

TEST(GradientCrossing, AllocatesKeptStateFromTheRanksMemoryAndCountsItDry) {
  comm::run_ranks(4, [&](comm::Communicator& world) {
    for (const Kind kind : {Kind::stage_0, Kind::stage_1, Kind::stage_2, Kind::hybrid}) {
      Crossing real(world, kind), dry(world, kind, Memory::Mode::dry);
      EXPECT_EQ(real.memory.live(), dry.memory.live());
      const int64_t numel = real.unit.layout.numel(), each = numel / 2;  // 4 ranks: 37 elements are padded to
                                                                         // 40
      EXPECT_EQ(numel, 40);
      EXPECT_EQ(real.memory.live().at(MemoryKind::device, Category::optimizer_state),
                4 * (kind == Kind::hybrid ? numel + each : numel));
      EXPECT_GT(real.memory.live().at(MemoryKind::device, Category::buckets), 0);
    }
    Crossing c(world, Kind::stage_2);
    const int64_t before = world.bytes()[comm::Collective::all_to_all];
    c.step(world.rank(), 0);
    EXPECT_EQ(world.bytes()[comm::Collective::all_to_all] - before, 3 * Signs::bytes(10))
        << "a byte an element and a scale";
    EXPECT_EQ(world.bytes()[comm::Collective::reduce_scatter], 0);
  });
}

}  // namespace
}  // namespace cleave::zero
