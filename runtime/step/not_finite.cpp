#include "runtime/step/not_finite.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <vector>

#include "runtime/step/state_records.h"

namespace cleave::runtime {
namespace {

using nlohmann::json;

constexpr int64_t kPiece = int64_t{1} << 20;  // elements that are read at a time

// Largest magnitude that rounds to a finite value.
double largest_of(DType type) {
  return type == DType::fp16   ? 65519.99
         : type == DType::bf16 ? 3.3961e38
                               : double(std::numeric_limits<float>::max());
}

std::string number(double value) { return std::isnan(value) ? "nan" : fmt::format("{:.6g}", value); }

// A parameter's element, in the order of the model.
struct Place {
  int unit = 0, param = 0;
  int64_t element = 0;
  std::string name, value;
  auto order() const { return std::tuple(unit, param, element); }
};

// The first weight of this rank's slices that is not finite in the model's type.
std::optional<Place> bad_weight(RankState& rank, DType type, Stream& compute) {
  const double most = largest_of(type);
  std::vector<float> values;
  std::optional<Place> first;
  for (int u = 0; u < rank.store.units(); ++u) {
    const zero::FlatLayout& layout = rank.store.layout(u);
    if (layout.word() > 0) continue;
    for (const zero::FlatLayout::Piece& piece : layout.pieces(rank.store.slice(u)))
      for (int64_t at = 0; at < piece.elements.size(); at += kPiece) {
        values.resize(size_t(std::min(kPiece, piece.elements.size() - at)));
        rank.saved->read(u, 0, Range{0, int64_t(values.size())}.shifted(piece.offset + at),
                         Tensor(values.data(), DType::fp32, {int64_t(values.size())}, MemoryKind::host),
                         compute);
        const auto bad = std::ranges::find_if(values, [&](float x) { return !(std::fabs(x) <= most); });
        if (bad == values.end()) continue;
        const Place found{.unit = rank.units.held[size_t(u)],
                          .param = piece.param,
                          .element = piece.elements.begin + at + (bad - values.begin()),
                          .name = layout.param(piece.param).name,
                          .value = number(*bad)};
        if (!first || found.order() < first->order()) first = found;
        break;
      }
  }
  return first;
}

// The first bad gradient of this rank in a unit.
std::optional<Place> bad_gradient(RankState& rank, int unit, Stream& compute) {
  for (int u = 0; u < rank.store.units(); ++u) {
    const zero::FlatLayout& layout = rank.store.layout(u);
    if (rank.units.held[size_t(u)] != unit || layout.frozen() || layout.word() > 0) continue;
    for (int p = 0; p < layout.params(); ++p) {
      std::vector<float> values(size_t(layout.param(p).whole_numel()), 0.0f);
      read_gradient(rank, layout.param(p).name, values, compute);
      const auto bad = std::ranges::find_if(values, [](float x) { return !std::isfinite(x); });
      if (bad != values.end())
        return Place{unit, p, bad - values.begin(), layout.param(p).name, number(*bad)};
    }
  }
  return {};
}

// Returns the first place of all ranks, and the rank that has it. Collective.
std::optional<std::pair<Place, int>> first_of(Ranks& ranks, const std::optional<Place>& mine) {
  json text;
  if (mine) text = {mine->unit, mine->param, mine->element, mine->name, mine->value};
  std::optional<std::pair<Place, int>> first;
  const std::vector<std::string> all = ranks.texts(ranks.world(), mine ? text.dump() : "");
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    const json place = json::parse(all[r]);
    const Place theirs{place[0], place[1], place[2], place[3], place[4]};
    if (!first || theirs.order() < first->first.order()) first = {theirs, int(r)};
  }
  return first;
}

}  // namespace

NotFinite first_not_finite(RankState& rank, Ranks& ranks, const FailedStep& step, Stream& compute) {
  const std::string weights = step.has_updates ? "" : "weights and ";
  if (const auto weight =
          step.has_updates ? std::nullopt : first_of(ranks, bad_weight(rank, step.dtype, compute)))
    return {
        fmt::format("before the step, element {} of {} is {} (rank {}); resume from an earlier checkpoint",
                    weight->first.element, weight->first.name, weight->first.value, weight->second)};
  std::string mine;
  for (size_t i = 0; i < step.losses.size() && mine.empty(); ++i)
    if (!std::isfinite(step.losses[i]))
      mine = fmt::format("{} {}", int64_t(i) % step.micros + 1, number(step.losses[i]));
  const std::vector<std::string> losses = ranks.texts(ranks.world(), mine);
  for (size_t r = 0; r < losses.size(); ++r)
    if (const size_t blank = losses[r].find(' '); blank != std::string::npos)
      return {fmt::format("{}the loss of micro-batch {} on rank {} is {}",
                          step.has_updates ? "" : "the weights are finite, and ", losses[r].substr(0, blank),
                          r, losses[r].substr(blank + 1)),
              MicroPlace{int(r), std::stoll(losses[r].substr(0, blank)) - 1}};
  int unit = int(step.squares.size()) - 1;
  while (unit >= 0 && std::isfinite(step.squares[size_t(unit)])) --unit;
  const auto gradient = first_of(ranks, unit < 0 ? std::nullopt : bad_gradient(rank, unit, compute));
  if (!gradient) return {"all weights and losses are finite; the sum of gradients overflows"};
  return {fmt::format(
      "all weights and losses are finite; the backward first has a gradient of {} in {} (element {}, "
      "rank {})",
      gradient->first.value, gradient->first.name, gradient->first.element, gradient->second)};
}

}  // namespace cleave::runtime
