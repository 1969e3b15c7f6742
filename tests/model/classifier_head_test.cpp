// Head against its definition in double precision: with and without padded classes, over a tensor axis and on
// one rank, in chunks of any number of rows, with logits of either type.
#include "model/classifier_head.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace cleave::model {
namespace {

constexpr int64_t kHeadRows = 36, kHeadWidth = 8;
constexpr float kScale = 0.5f;

struct HeadCase {
  int64_t classes;
  DType type = DType::fp32;
  LogitsChunk logits = {};
  bool apart() const { return logits.type != type; }
};

// Values that the type represents, in the order of the whole tensors.
struct Operands {
  std::vector<double> x, w, b;
  std::vector<int32_t> targets;
};

double as_type(double v, DType type) {
  if (type == DType::bf16) return to_float(from_float<bf16>(float(v)));
  if (type == DType::fp16) return to_float(from_float<fp16>(float(v)));
  return float(v);
}

std::vector<double> numbers(int64_t count, unsigned seed, DType type) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<double> out(size_t(count), 0.0);
  for (double& x : out) x = as_type(normal(engine), type);
  return out;
}

Operands operands(const HeadCase& c) {
  Operands o{numbers(kHeadRows * kHeadWidth, 1, c.type),
             numbers(c.classes * kHeadWidth, 2, c.type),
             numbers(c.classes, 3, c.type),
             {}};
  for (int64_t r = 0; r < kHeadRows; ++r)
    o.targets.push_back(r == 3 ? -100 : int32_t(r == 1 ? c.classes - 1 : r * 7 % c.classes));
  return o;
}

struct Outcome {
  std::vector<double> losses, dx, dweight, dbias;
};
std::array<std::pair<const char*, std::vector<double> Outcome::*>, 4> parts() {
  return {{{"losses", &Outcome::losses},
           {"dx", &Outcome::dx},
           {"dweight", &Outcome::dweight},
           {"dbias", &Outcome::dbias}}};
}

// Half the relative distance between neighbors.
double half_step(DType type) {
  return type == DType::bf16 ? 0x1p-9 : type == DType::fp16 ? 0x1p-11 : 0x1p-24;
}

// Expected results and bounds of rounding. Logits are rounded by half a step of their type, which changes the
// log-sum and the target's logit by at most the largest of these errors, and so every softmax share by a
// factor of e^(2 * error). Gradients are rounded by half a step of their type; sums of gradients once more
// per chunk.
struct Expected {
  Outcome value, bound;
};
Expected expected(const HeadCase& c) {
  const Operands o = operands(c);
  const double of_logits = c.logits.type == DType::fp32 ? 0 : half_step(c.logits.type),
               of_gradient = half_step(c.type), fp32 = 4e-6;
  Expected e;
  for (Outcome* out : {&e.value, &e.bound}) {
    out->losses.assign(kHeadRows, 0), out->dx.assign(kHeadRows * kHeadWidth, 0);
    out->dweight.assign(size_t(c.classes * kHeadWidth), 0), out->dbias.assign(size_t(c.classes), 0);
  }
  for (size_t r = 0; r < size_t(kHeadRows); ++r) {
    if (o.targets[r] == -100) continue;
    std::vector<double> z(o.b);
    double top = -1e300, largest = 0, sum = 0;
    for (size_t i = 0; i < z.size(); ++i) {
      for (size_t k = 0; k < kHeadWidth; ++k) z[i] += o.x[r * kHeadWidth + k] * o.w[i * kHeadWidth + k];
      top = std::max(top, z[i]), largest = std::max(largest, std::fabs(z[i]));
    }
    for (const double v : z) sum += std::exp(v - top);
    const double off = of_logits * largest + fp32 * (1 + largest), factor = std::expm1(2 * off);
    e.value.losses[r] = std::log(sum) + top - z[size_t(o.targets[r])];
    e.bound.losses[r] = 2 * off;
    for (size_t i = 0; i < z.size(); ++i) {
      const double share = std::exp(z[i] - top) / sum, g = kScale * (share - (int32_t(i) == o.targets[r])),
                   dg = kScale * share * factor * 1.01 + of_gradient * std::fabs(g) * 1.01 + 1e-7;
      e.value.dbias[i] += g, e.bound.dbias[i] += dg;
      for (size_t k = 0; k < kHeadWidth; ++k) {
        e.value.dx[r * kHeadWidth + k] += g * o.w[i * kHeadWidth + k];
        e.bound.dx[r * kHeadWidth + k] += dg * std::fabs(o.w[i * kHeadWidth + k]);
        e.value.dweight[i * kHeadWidth + k] += g * o.x[r * kHeadWidth + k];
        e.bound.dweight[i * kHeadWidth + k] +=
            (dg + of_gradient * kHeadRows * std::fabs(g)) * std::fabs(o.x[r * kHeadWidth + k]);
      }
      e.bound.dbias[i] += of_gradient * kHeadRows * std::fabs(g);
    }
  }
  for (size_t i = 0; i < e.value.dx.size(); ++i)
    e.bound.dx[i] += of_gradient * (std::fabs(e.value.dx[i]) + e.bound.dx[i]) * 4 + 1e-6;
  for (auto part : {&Outcome::dweight, &Outcome::dbias})
    for (double& b : e.bound.*part) b += 1e-6;
  return e;
}

// Memory of a type, initialized with values.
class Typed {
 public:
  Typed(DType type, Shape shape, const std::vector<double>& values = {})
      : bytes_(size_t(shape.numel() * size_of(type))), tensor_(bytes_.data(), type, shape) {
    for (size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }
  Tensor tensor() const { return tensor_; }
  void set(size_t i, double v) {
    if (tensor_.dtype() == DType::fp32) tensor_.as<float>()[i] = float(v);
    if (tensor_.dtype() == DType::bf16) tensor_.as<bf16>()[i] = from_float<bf16>(float(v));
    if (tensor_.dtype() == DType::fp16) tensor_.as<fp16>()[i] = from_float<fp16>(float(v));
  }
  double at(size_t i) const {
    if (tensor_.dtype() == DType::bf16) return to_float(tensor_.as<bf16>()[i]);
    if (tensor_.dtype() == DType::fp16) return to_float(tensor_.as<fp16>()[i]);
    return double(tensor_.as<float>()[i]);
  }

 private:
  std::vector<std::byte> bytes_;
  Tensor tensor_;
};

// Runs the head on this rank's rows and classes; returns gradients in the order of the whole tensors, 0 for
// parts on other ranks. Padding is 0 before and after.
Outcome run_head(const tensor_parallel::TensorAxis& axis, const HeadCase& c) {
  const ClassifierHead head({.unit = "head",
                             .weight = "weight",
                             .bias = "bias",
                             .classes = c.classes,
                             .width = kHeadWidth,
                             .axis = axis});
  const Operands o = operands(c);
  const tensor_parallel::TensorAxis::Padded part = axis.padded_part(c.classes);
  const int64_t rows = axis.local_rows(kHeadRows), first = axis.cuts_rows() ? axis.rank() * rows : 0;
  Typed x(c.type, {rows, kHeadWidth}), w(c.type, {part.size, kHeadWidth}), b(c.type, {part.size}),
      dx(c.type, {rows, kHeadWidth}, std::vector<double>(size_t(rows * kHeadWidth), 9)),
      dw(c.type, {part.size, kHeadWidth}, std::vector<double>(size_t(part.size * kHeadWidth), 9)),
      db(c.type, {part.size}, std::vector<double>(size_t(part.size), 9));
  for (size_t i = 0; i < size_t(rows * kHeadWidth); ++i) x.set(i, o.x[size_t(first * kHeadWidth) + i]);
  for (size_t i = 0; i < size_t(part.real.size()); ++i) {
    b.set(i, o.b[size_t(part.real.begin) + i]);
    for (size_t k = 0; k < kHeadWidth; ++k)
      w.set(i * kHeadWidth + k, o.w[(size_t(part.real.begin) + i) * kHeadWidth + k]);
  }
  std::vector<float> losses(size_t(kHeadRows), 0.f);
  std::vector<int32_t> targets = o.targets;
  std::vector<std::byte> memory(size_t{4} << 20);
  Arena scratch(Tensor(memory.data(), DType::uint8, {int64_t(memory.size())}));
  Stream stream;
  bool written[2] = {false, false};
  ParamGradient grads[2] = {{dw.tensor(), &written[0]}, {db.tensor(), &written[1]}};
  const Tensor params[2] = {w.tensor(), b.tensor()};
  head.run({.losses = Tensor(losses.data(), DType::fp32, {kHeadRows}),
            .dx = dx.tensor(),
            .x = x.tensor(),
            .targets = Tensor(targets.data(), DType::int32, {kHeadRows}),
            .params = params,
            .grads = grads,
            .scale = kScale,
            .scratch = scratch,
            .stream = stream,
            .logits = c.logits});
  Outcome out;
  out.losses.assign(losses.begin(), losses.end());
  out.dx.assign(size_t(kHeadRows * kHeadWidth), 0.0);
  for (size_t i = 0; i < size_t(rows * kHeadWidth); ++i) out.dx[size_t(first * kHeadWidth) + i] = dx.at(i);
  out.dweight.assign(o.w.size(), 0.0), out.dbias.assign(o.b.size(), 0.0);
  for (size_t i = 0; i < size_t(part.size); ++i) {
    const bool real = int64_t(i) < part.real.size();
    const size_t at = size_t(part.real.begin) + i;
    if (real) out.dbias[at] = db.at(i);
    EXPECT_TRUE(real || db.at(i) == 0) << "padding " << i;
    for (size_t k = 0; k < kHeadWidth; ++k) {
      if (real) out.dweight[at * kHeadWidth + k] = dw.at(i * kHeadWidth + k);
      EXPECT_TRUE(real || dw.at(i * kHeadWidth + k) == 0) << "padding " << i;
    }
  }
  return out;
}

void expect_within(const Outcome& got, const Expected& want, const std::string& what) {
  for (const auto& [name, part] : parts()) {
    ASSERT_EQ((got.*part).size(), (want.value.*part).size());
    for (size_t i = 0; i < (got.*part).size(); ++i)
      ASSERT_NEAR((got.*part)[i], (want.value.*part)[i], (want.bound.*part)[i])
          << what << ": " << name << " " << i;
  }
}

// 11 classes are not padded; 4099 are padded for every number of ranks.
std::vector<HeadCase> cases() {
  std::vector<HeadCase> out;
  for (const int64_t classes : {11, 4099}) {
    for (const int64_t rows : {1, 5, 100}) out.push_back({classes, DType::fp32, {.rows = rows}});
    out.push_back({classes, DType::fp32, {.bytes = 3 * 4 * 4}});
    for (const DType type : {DType::bf16, DType::fp16})
      for (const DType logits : {DType::fp32, type})
        for (const int64_t rows : {5, 100}) out.push_back({classes, type, {.rows = rows, .type = logits}});
  }
  return out;
}

std::string text_of(const HeadCase& c) {
  return fmt::format("{} classes, {}, {} rows of {}", c.classes, name_of(c.type), c.logits.rows,
                     name_of(c.logits.type));
}

TEST(ClassifierHead, GivesTheLossAndItsGradientsOfDoublePrecision) {
  for (const HeadCase& c : cases())
    expect_within(run_head(tensor_parallel::TensorAxis(), c), expected(c), text_of(c));
}

TEST(ClassifierHead, GivesTheSameOverATensorAxis) {
  for (const HeadCase& c : cases()) {
    const Expected want = expected(c);
    for (int ranks : {2, 3, 4})
      for (bool cut_rows : {false, true})
        comm::run_ranks(ranks, [&](comm::Communicator& world) {
          Expected mine = want;
          Outcome got = run_head(tensor_parallel::TensorAxis(world, cut_rows), c);
          Stream stream;
          // Each rank holds its classes' gradients, and its rows of dx if rows are cut. dx is a sum of that
          // number of parts, each rounded to the type.
          for (auto* v : {&got.dweight, &got.dbias})
            world.all_reduce(Tensor(v->data(), DType::fp64, {int64_t(v->size())}), stream);
          if (cut_rows)
            world.all_reduce(Tensor(got.dx.data(), DType::fp64, {int64_t(got.dx.size())}), stream);
          double largest = 0;
          for (const double v : want.value.dx) largest = std::max(largest, std::fabs(v));
          for (double& b : mine.bound.dx) b += 2 * ranks * half_step(c.type) * largest * 4;
          expect_within(got, mine, fmt::format("{}, {} ranks", text_of(c), ranks));
        });
  }
}

// The number of rows per chunk changes only the rounding of the weights' gradient, in fp32 in the last
// digits; a row's loss and gradient are independent of other rows. Products of up to eight rows are not
// packed and add in another order.
TEST(ClassifierHead, GivesTheSameBitsOfARowInChunksOfAnySize) {
  for (const DType logits : {DType::fp32, DType::bf16}) {
    const Outcome want =
        run_head(tensor_parallel::TensorAxis(), {4099, DType::bf16, {.rows = 100, .type = logits}});
    for (const int64_t rows : {9, 12, 18}) {
      const Outcome got =
          run_head(tensor_parallel::TensorAxis(), {4099, DType::bf16, {.rows = rows, .type = logits}});
      EXPECT_EQ(got.losses, want.losses) << rows;
    }
  }
}

TEST(ClassifierHead, TakesScratchForItsChunkAndOneBufferIfTypesAgree) {
  constexpr int64_t kMany = 1000, kClasses = 11;
  const ClassifierHead head({.unit = "u", .weight = "w", .classes = kClasses, .width = kHeadWidth});
  const auto scratch = [&](DType type, const LogitsChunk& logits, bool train) {
    Arena dry;
    Stream discard(Stream::Mode::discard);
    bool written = false;
    ParamGradient grad[1] = {{Tensor(nullptr, type, {kClasses, kHeadWidth}), &written}};
    const Tensor params[1] = {Tensor(nullptr, type, {kClasses, kHeadWidth})};
    head.run({.losses = Tensor(nullptr, DType::fp32, {kMany}),
              .dx = Tensor(nullptr, type, {kMany, kHeadWidth}),
              .x = Tensor(nullptr, type, {kMany, kHeadWidth}),
              .targets = Tensor(nullptr, DType::int32, {kMany}),
              .params = params,
              .grads = train ? std::span<ParamGradient>(grad) : std::span<ParamGradient>(),
              .scratch = dry,
              .stream = discard,
              .logits = logits});
    return dry.peak_bytes();
  };
  const auto padded = [](int64_t bytes) { return round_up(bytes, 64); };
  // 1000 rows in chunks of at most 300 give four of 250.
  EXPECT_EQ(scratch(DType::bf16, {.rows = 300, .type = DType::bf16}, true), padded(250 * kClasses * 2));
  EXPECT_EQ(scratch(DType::bf16, {.rows = 300, .type = DType::fp32}, true),
            padded(250 * kClasses * 4) + padded(250 * kClasses * 2));
  EXPECT_EQ(scratch(DType::bf16, {.rows = 300, .type = DType::fp32}, false), padded(250 * kClasses * 4));
  EXPECT_EQ(scratch(DType::fp32, {.rows = 300}, true), padded(250 * kClasses * 4));
  EXPECT_EQ(scratch(DType::fp32, {.bytes = 250 * kClasses * 4}, true), padded(250 * kClasses * 4));
  EXPECT_EQ(scratch(DType::fp32, {.rows = 1000, .bytes = 250 * kClasses * 4 - 1}, true),
            padded(200 * kClasses * 4));
  EXPECT_EQ(scratch(DType::fp32, {.bytes = 1}, true), padded(kClasses * 4));
  EXPECT_EQ(scratch(DType::fp32, {.rows = 300, .input = 500 * kHeadWidth}, true), padded(500 * kClasses * 4));
  EXPECT_EQ(scratch(DType::fp32, {.rows = 300, .input = 200 * kHeadWidth}, true), padded(250 * kClasses * 4));
  // 700 rows fit together with their gradient, and 1000 alone; an evaluation still has the training's two
  // chunks.
  const LogitsChunk tight{.bytes = 1050 * kClasses * 4};
  EXPECT_EQ(scratch(DType::bf16, tight, true), padded(500 * kClasses * 4) + padded(500 * kClasses * 2));
  EXPECT_EQ(scratch(DType::bf16, tight, false), padded(500 * kClasses * 4));
}

TEST(ClassifierHead, DeclaresWholeParametersOnEveryAxis) {
  comm::run_ranks(3, [](comm::Communicator& world) {
    const tensor_parallel::TensorAxis axis(world);
    const ClassifierHead head(
        {.unit = "u", .weight = "w", .bias = "b", .classes = 11, .width = 8, .axis = axis});
    const UnitSpec unit = head.units()[0];
    EXPECT_EQ(unit.params[0].shape, (std::vector<int64_t>{4, 8}));
    EXPECT_EQ(unit.params[0].whole_shape(), (std::vector<int64_t>{11, 8}));
    EXPECT_EQ(unit.params[0].splits()[0].rank, world.rank());
    EXPECT_EQ(unit.params[1].whole_shape(), (std::vector<int64_t>{11}));
  });
}

}  // namespace
}  // namespace cleave::model
