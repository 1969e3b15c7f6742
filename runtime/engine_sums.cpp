// What a step adds up where the axes meet: gradients of shared units, the norm, the loss.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "device/copy.h"
#include "runtime/engine_state.h"

namespace cleave {
namespace {

// Of the squared multiples of 2^-grid whose sum has these words (SumIntegerSquares). Carried first, so that
// the result is a function of the sum.
double square_of(std::span<const int64_t> words, int grid) {
  uint64_t carry = 0;
  double sum = 0;
  for (int w = 0; w < 4; ++w) {
    const uint64_t word = uint64_t(words[size_t(w)]) + carry;
    const uint64_t here = w < 3 ? word & 0xffffffffu : word;
    carry = word >> 32;
    sum += std::ldexp(double(here), 32 * w - 2 * grid);
  }
  return sum;
}

}  // namespace

void Engine::State::sum_shared_gradients() {
  comm().wait(compute.record());
  ParameterStore& store = all->store;
  for (const auto& [name, group] : tied)
    for (int u = 0; u < store.units(); ++u)
      if (store.layout(u).name() == name && !store.layout(u).frozen())
        group->all_reduce(store.gradient_slice(u), comm(), {.what = name});
  for (int u = 0; axes.tensor.size() > 1 && u < store.units(); ++u)
    for (const Range& r : store.layout(u).summed(store.slice(u), axes.tensor.cuts_rows()))
      mesh.tensor->all_reduce(store.gradient_slice(u).slice(r), comm(), {.what = store.layout(u).name()});
  compute.wait(comm().record());
}

std::vector<bool> Engine::State::units_summed_late() const {
  std::vector<bool> late;
  for (int u = 0; u < all->store.units(); ++u) {
    const FlatLayout& layout = all->store.layout(u);
    late.push_back(axes.tensor.size() > 1 &&
                   !layout.summed({0, layout.numel()}, axes.tensor.cuts_rows()).empty());
    for (const auto& [name, group] : tied) late.back() = late.back() || name == layout.name();
  }
  return late;
}

bool Engine::State::norm_first() const {
  return config.gradient_clipping > 0 || config.precision == Precision::fp16 || config.exact_sums ||
         (config.precision == Precision::bf16 && config.check_grad_overflow);
}

std::vector<double> Engine::State::squares_of_units() {
  if (!all->store.options().exact()) return to_host<double>(all->squares, compute);
  const std::vector<int64_t> words = to_host<int64_t>(all->squares, compute);
  std::vector<double> squares(size_t(all->store.units()), std::nan(""));
  for (size_t u = 0; words.back() == 0 && u < squares.size(); ++u)
    squares[u] = square_of(std::span(words).subspan(4 * u, 4), config.exact_sums_grid);
  return squares;
}

double Engine::State::squared_norm() {
  optimizer().square_gradients(all->squares, compute);
  const std::vector<double> mine = squares_of_units();
  // One place a unit of the model, so that the sum has one order wherever the pipe is cut; a unit that
  // several stages hold counts on one of them, and what all ranks of a tensor axis hold on its first.
  std::vector<double> squares(plan.units.size(), 0);
  for (int u = 0; u < all->store.units(); ++u)
    if (speaks_for(u) || std::isnan(mine[size_t(u)]))
      squares[size_t(plan.index_of(all->store.layout(u).name()))] = mine[size_t(u)];
  for (Communicator* ranks : {mesh.tensor, mesh.pipe})
    ranks->all_reduce(Tensor(squares.data(), DType::fp64, {int64_t(squares.size())}, MemoryKind::host),
                      comm(), {.what = "squared gradient norm"});
  comm().synchronize();
  double sum = 0;
  for (const double x : squares) sum += x;
  return sum;
}

double Engine::State::mean_of_losses(const std::vector<double>& losses) {
  const double micros = double(config.gradient_accumulation_steps);
  const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  if (!config.exact_sums) return sum_over_ranks(sum / micros, "loss") / mesh.shape.data;
  constexpr double kGrid = 0x1p40;
  const double limit = 0x1p62 / (micros * mesh.data->size());
  int64_t words[2] = {0, 0};  // multiples of 1 / kGrid, and how many losses are too large or not finite
  for (const double loss : losses)
    if (std::fabs(loss * kGrid) <= limit)
      words[0] += int64_t(std::nearbyint(loss * kGrid));
    else
      ++words[1];
  world.all_reduce(Tensor(words, DType::int64, {2}, MemoryKind::host), comm(), {.what = "loss"});
  comm().synchronize();
  return words[1] > 0 ? std::nan("") : double(words[0]) / kGrid / (micros * mesh.shape.data);
}

double Engine::State::sum_over_ranks(double value, std::string_view what) {
  world.all_reduce(Tensor(&value, DType::fp64, {1}, MemoryKind::host), comm(), {.what = what});
  comm().synchronize();
  return value;
}

}  // namespace cleave
