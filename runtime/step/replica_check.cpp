#include "runtime/step/replica_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <tuple>

#include "comm/together.h"
#include "core/philox.h"
#include "device/copy.h"
#include "kernels/checksum.h"
#include "kernels/elementwise.h"

namespace cleave::runtime {
namespace {

constexpr size_t kShown = 4;  // weights in a message

// Places of this rank along axes, as text.
std::string places(const MeshPlace& place, AxisSet axes) {
  std::string text;
  for (const MeshAxis& a : kMeshAxes)
    text += axes.has(a.axis) ? fmt::format(" {}", place.*a.place) : std::string(" -");
  return text;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

const std::vector<int>& most_of(const std::map<int64_t, std::vector<int>>& by_sum) {
  return std::max_element(by_sum.begin(), by_sum.end(),
                          [](const auto& a, const auto& b) {
                            return a.second.size() != b.second.size() ? a.second.size() < b.second.size()
                                                                      : a.second.front() > b.second.front();
                          })
      ->second;
}

// Ranks with other sums than the most frequent ones of their key; of equally frequent sums, those of the
// lowest rank count.
std::vector<int> odd_ranks(const std::vector<ReplicaCheck::Sums>& of_ranks) {
  std::map<std::pair<size_t, int64_t>, std::map<int64_t, std::vector<int>>> seen;
  for (size_t r = 0; r < of_ranks.size(); ++r)
    for (size_t k = 0; k < of_ranks[r].size(); ++k)
      if (of_ranks[r][k].key != 0) seen[{k, of_ranks[r][k].key}][of_ranks[r][k].sum].push_back(int(r));
  std::set<int> odd;
  for (const auto& [key, sums] : seen) {
    const auto& most = most_of(sums);
    for (const auto& [sum, ranks] : sums)
      if (ranks != most) odd.insert(ranks.begin(), ranks.end());
  }
  return {odd.begin(), odd.end()};
}

}  // namespace

ReplicaCheck::ReplicaCheck(Ranks& ranks, int64_t steps, config::ReplicaPolicy policy, Device device)
    : ranks_(ranks),
      steps_(steps),
      policy_(policy),
      memory_({}, Memory::Mode::real, device),
      on_device_(
          memory_.allocate(MemoryKind::device, Category::staging, DType::int64, {kKinds}, "checksums")),
      on_host_(memory_.allocate(MemoryKind::pinned, Category::staging, DType::int64, {kKinds}, "checksums")) {
}

// Cuts the weights that stay on this rank between uses into pieces, and deals them to the steps.
void ReplicaCheck::find_pieces(RankState& rank) {
  const comm::Mesh& mesh = ranks_.mesh();
  AxisSet along_data{Axis::pipe, Axis::tensor};
  std::vector<Piece> whole;
  int64_t numel = 0;
  for (int u = 0; u < rank.store.units(); ++u) {
    const zero::StoredUnit& unit = rank.store.weights().unit(u);
    const Tensor shard = rank.store.weights().shard(u);
    if (unit.sharding.gathers() || !shard.defined() || !shard.raw() ||
        (memory_.device().is_cuda() && shard.memory() != MemoryKind::device))
      continue;
    const bool tied = rank.units.holders[size_t(rank.units.held[size_t(u)])].size() > 1;
    for (int p = 0; p < unit.layout.params(); ++p) {
      const ParamSpec& param = unit.layout.param(p);
      AxisSet same = param.cut_by();
      const auto add = [&](Kind kind, AxisSet axes) {
        const auto owners = int64_t(hash_name(param.name + places(mesh.place, axes)) >> 1);
        whole.push_back({u, p, unit.layout.range(p), kind, owners, param.name});
        if (kind == Kind::data) numel += unit.layout.range(p).size();
      };
      AxisSet data = same;
      data.add(along_data);
      if (mesh.shape.data * mesh.shape.sequence > 1) add(Kind::data, data);
      AxisSet stage = same;
      stage.add(Axis::pipe);
      if (mesh.shape.tensor > 1 && !same.has(Axis::tensor)) add(Kind::uncut, stage);
      if (tied) add(Kind::tied, same);
    }
  }
  shares_.assign(size_t(steps_), {});
  const int64_t most = std::max<int64_t>(1, ceil_div(numel, steps_));
  int64_t at = 0;
  for (const Piece& piece : whole) {
    // Ranks with other weights besides this one cut it at the same places, and deal it to the same steps.
    const bool alone = piece.kind != Kind::data;
    const int64_t size = alone ? std::max<int64_t>(1, ceil_div(piece.range.size(), steps_)) : most;
    auto step = int64_t(hash_name(piece.name) % uint64_t(steps_));
    for (int64_t begin = piece.range.begin; begin < piece.range.end; begin += size) {
      Piece part = piece;
      part.range = {begin, std::min(piece.range.end, begin + size)};
      if (!alone) step = at / most, at += part.range.size();
      shares_[size_t(step++ % steps_)].push_back(std::move(part));
    }
  }
}

std::vector<const ReplicaCheck::Piece*> ReplicaCheck::share(int64_t step) const {
  std::vector<const Piece*> pieces;
  for (const Piece& p : shares_[size_t(step % steps_)]) pieces.push_back(&p);
  return pieces;
}

void ReplicaCheck::enqueue(RankState& rank, int64_t step, Stream& compute) {
  if (shares_.empty()) find_pieces(rank);
  keys_ = {};
  launch(kernels::Fill{.y = on_device_.tensor()}, compute);
  for (const Piece* p : share(step)) {
    const auto kind = int64_t(p->kind);
    launch(kernels::Checksum{.out = on_device_.tensor().slice({kind, kind + 1}),
                             .x = rank.store.weights().shard(p->unit).slice(p->range),
                             .first = p->range.begin},
           compute);
    // Nonzero, and a function of the pieces in their order.
    keys_[size_t(kind)] = int64_t(hash_name(fmt::format("{} {} {} {}", keys_[size_t(kind)], p->owners,
                                                        p->range.begin, p->range.end)) >>
                                  1) |
                          1;
  }
  copy(on_host_.tensor(), on_device_.tensor(), compute);
}

ReplicaCheck::Sums ReplicaCheck::sums() const {
  Sums sums;
  for (size_t k = 0; k < sums.size(); ++k) sums[k] = {keys_[k], on_host_.tensor().as<int64_t>()[k]};
  return sums;
}

// Every rank describes its pieces as lines, which all ranks compare.
std::vector<ReplicaCheck::Difference> ReplicaCheck::differences(RankState& rank, int64_t step,
                                                                Stream& compute) {
  const std::vector<const Piece*> mine = share(step);
  std::string text;
  for (const Piece* p : mine) {
    const Tensor first = on_device_.tensor().slice({0, 1});
    launch(kernels::Fill{.y = first}, compute);
    launch(
        kernels::Checksum{
            .out = first, .x = rank.store.weights().shard(p->unit).slice(p->range), .first = p->range.begin},
        compute);
    copy(on_host_.tensor().slice({0, 1}), first, compute);
    compute.synchronize();
    text += fmt::format("{} {} {} {} {} {}\n", int(p->kind), p->owners, p->range.begin, p->range.end,
                        *on_host_.tensor().as<int64_t>(), p->name);
  }
  const std::vector<std::string> texts = ranks_.texts(ranks_.world(), text);
  struct Copy {
    Piece piece;
    std::map<int64_t, std::vector<int>> ranks;  // by sum
  };
  std::map<std::tuple<int, int64_t, int64_t>, Copy> copies;
  for (size_t r = 0; r < texts.size(); ++r) {
    std::istringstream lines(texts[r]);
    int kind = 0;
    int64_t owners = 0, begin = 0, end = 0, sum = 0;
    std::string name;
    while (lines >> kind >> owners >> begin >> end >> sum && std::getline(lines >> std::ws, name)) {
      Copy& c = copies[{kind, owners, begin}];
      c.piece = {-1, -1, {begin, end}, Kind(kind), owners, name};
      c.ranks[sum].push_back(int(r));
    }
  }
  std::vector<Difference> found;
  for (auto& [key, c] : copies) {
    if (c.ranks.size() < 2) continue;
    Difference d{c.piece, {}, {}};
    for (const Piece* p : mine)
      if (p->kind == d.piece.kind && p->owners == d.piece.owners && p->range.begin == d.piece.range.begin)
        d.piece = *p;
    d.most = most_of(c.ranks);
    for (const auto& [sum, ranks] : c.ranks)
      if (ranks != d.most) d.others.insert(d.others.end(), ranks.begin(), ranks.end());
    std::sort(d.others.begin(), d.others.end());
    found.push_back(std::move(d));
  }
  return found;
}

// Gives the ranks with other bits the masters and optimizer states of the first rank with the most frequent
// ones, if ranks have whole copies of them, and publishes the masters again. Collective.
bool ReplicaCheck::repair(RankState& rank, const std::vector<Difference>& found, Stream& compute) {
  if (std::any_of(found.begin(), found.end(), [](const auto& d) { return d.piece.kind != Kind::data; }))
    return false;
  const int me = ranks_.world().rank();
  for (const Difference& d : found) {
    const bool own = d.piece.unit >= 0;
    const bool whole = own && rank.store.weights().unit(d.piece.unit).sharding.optimizer_shards() == 1;
    const bool frozen = own && rank.store.layout(d.piece.unit).frozen();
    double counts[2] = {0, 0};  // whole copies, and words instead of numbers
    if (me == d.most.front())
      counts[0] = whole ? double(frozen ? 1 : rank.saved->kinds().size()) : 0,
      counts[1] = rank.store.layout(d.piece.unit).word() > 0;
    ranks_.sum(counts, "copies of weights to repair");
    if (counts[1] > 0) return false;
    std::vector<float> values(size_t(d.piece.range.size()));
    const Tensor host(values.data(), DType::fp32, {d.piece.range.size()}, MemoryKind::host);
    for (int kind = 0; kind < int(counts[0]); ++kind) {
      if (me == d.most.front()) rank.saved->read(d.piece.unit, kind, d.piece.range, host, compute);
      Stream on_host;
      ranks_.world().broadcast(host, d.most.front(), on_host, {.what = "weights to repair"});
      on_host.synchronize();
      if (std::count(d.others.begin(), d.others.end(), me))
        rank.saved->write(d.piece.unit, kind, d.piece.range, host, compute);
    }
  }
  rank.saved->publish_masters(compute);
  return true;
}

std::vector<std::string> ReplicaCheck::compare(RankState& rank, int64_t step,
                                               const std::vector<Sums>& of_ranks, Stream& compute) {
  const std::vector<int> odd = odd_ranks(of_ranks);
  if (odd.empty()) return {};

  const std::vector<Difference> found = differences(rank, step, compute);
  if (found.empty())
    return {
        fmt::format("weights: {} had other bits than its peers in step {}, and is equal to them again after "
                    "the update; check "
                    "its memory",
                    ranks_text(odd), step)};
  std::set<std::string> names;
  std::string text;
  for (const Difference& d : found) {
    warned_.emplace(d.piece.name, step);
    if (!names.insert(d.piece.name).second || names.size() > kShown) continue;
    text += fmt::format("{}{}: {} differ{} from {} (first seen in step {})", text.empty() ? "" : "; ",
                        d.piece.name, ranks_text(d.others), d.others.size() == 1 ? "s" : "",
                        ranks_text(d.most), warned_.at(d.piece.name));
  }
  if (names.size() > kShown) text += fmt::format("; and {} others", names.size() - kShown);
  const bool may_vary =
      memory_.device().is_cuda() &&
      std::none_of(found.begin(), found.end(), [](const auto& d) { return d.piece.kind == Kind::data; });
  if (policy_ == config::ReplicaPolicy::repair && repair(rank, found, compute))
    return {text + "; repaired from " + ranks_text({found.front().most.front()})};
  if (policy_ == config::ReplicaPolicy::warn || may_vary) return {text};
  throw comm::AgreedError(
      Exit::training,
      fmt::format(
          "weights: copies on several ranks differ: {}; check the memory of that rank, and resume from a "
          "checkpoint before step {}, or set cleave.replica_policy to repair or warn",
          text, std::max<int64_t>(1, step - steps_ + 1)));
}

}  // namespace cleave::runtime
