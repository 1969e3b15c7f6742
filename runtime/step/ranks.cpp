#include "runtime/step/ranks.h"

#include <algorithm>

#include "comm/device_group.h"
#include "comm/from_peer.h"

namespace cleave::runtime {
namespace {

using Purpose = RankGroup::Purpose;

// Returns true if the axis inside the data axis cuts the unit.
bool cut_inside(const UnitSpec& unit) {
  const auto parts = std::count_if(unit.params.begin(), unit.params.end(),
                                   [](const ParamSpec& p) { return p.cut_by().has(Axis::sequence); });
  require(parts == 0 || parts == int64_t(unit.params.size()), Exit::usage,
          "unit {}: the {} axis splits {} of its {} parameters, but a unit is summed over one group of "
          "ranks; declare split and whole parameters in two units",
          unit.name, name_of(Axis::sequence), parts, unit.params.size());
  return parts > 0;
}

RankGroup tied_by(const std::string& unit) { return {Axis::pipe, Purpose::tied, unit}; }

}  // namespace

Ranks::Ranks(comm::Communicator& world, const Settings& s, Stream& rows)
    : world_(world),
      mesh_(world, s.mesh),
      axes_(tensor_parallel::TensorAxis(*mesh_.tensor, s.cuts_rows,
                                        {s.rows_overlap ? &rows : nullptr, s.piece_rows}),
            tensor_parallel::SequenceAxis(*mesh_.sequence)),
      cutting_{{Axis::tensor, mesh_.tensor, axes_.tensor.cuts_rows()}},
      self_(comm::self_communicator()),
      activations_(mesh_.pipe->duplicate(name_of({Axis::pipe, Purpose::activations}))),
      gradients_(mesh_.pipe->duplicate(name_of({Axis::pipe, Purpose::gradients}))) {
  if (const int n = s.near_ranks; n > 0) {
    // Ranks of the data axis, counted from 0.
    const RankRun all{0, mesh_.data->size(), 1};
    const int mine = mesh_.data->rank();
    const auto part = [&](const RankRun& ranks, Purpose purpose) {
      return mesh_.data->split({ranks.first, ranks.index_of(mine), ranks.count},
                               name_of({Axis::data, purpose}));
    };
    near_ = part(all.piece(mine, n), Purpose::near);
    across_ = part(all.across(mine, n), Purpose::across);
  }
}

void Ranks::tie(const RankUnits& units) {
  if (std::any_of(units.all.begin(), units.all.end(), cut_inside)) {
    cutting_.push_back({Axis::sequence, mesh_.sequence});
    const RankRun same = RankRun{0, mesh_.data->size(), 1}.across(mesh_.data->rank(), mesh_.shape.sequence);
    if (mesh_.shape.sequence > 1)
      parts_ = mesh_.data->split({same.first, same.index_of(mesh_.data->rank()), same.count},
                                 name_of({Axis::data, Purpose::parts}));
  }
  const int stage = mesh_.place.pipe;
  for (size_t u = 0; u < units.all.size(); ++u) {
    const std::string& name = units.all[u].name;
    const std::vector<int>& holders = units.holders[u];
    if (holders.size() < 2) continue;
    const int before = int(std::lower_bound(holders.begin(), holders.end(), stage) - holders.begin());
    const bool mine = before < int(holders.size()) && holders[size_t(before)] == stage;
    // A stage without the unit joins the split, with a group of one.
    auto group =
        mesh_.pipe->split(mine ? comm::Communicator::Subgroup{mesh_.shape.pipe, before, int(holders.size())}
                               : comm::Communicator::Subgroup{stage, 0, 1},
                          name_of(tied_by(name)));
    if (mine) tied_.emplace_back(name, std::move(group));
  }
}

comm::Communicator& Ranks::sharers(const UnitSpec& unit) const {
  return parts_ && cut_inside(unit) ? *parts_ : *mesh_.data;
}

std::vector<comm::Communicator*> Ranks::data_groups() const {
  std::vector<comm::Communicator*> out = {mesh_.data};
  for (comm::Communicator* part : {near_.get(), across_.get(), parts_.get()})
    if (part) out.push_back(part);
  return out;
}

void Ranks::open(std::span<comm::Communicator* const> groups, bool in_pieces) const {
  const auto open = [](comm::Communicator& group, bool pairs) {
    if (comm::TransportAccess* own = group.transport()) own->open(pairs);
  };
  for (comm::Communicator* group : groups) open(*group, in_pieces);
  open(*mesh_.tensor, false), open(*mesh_.sequence, true);
  for (const auto& [unit, group] : tied_) open(*group, false);
}

// In rank order from the first stage, which is the same on all ranks.
void Ranks::open_pipe(int64_t to_next, int64_t from_before, bool gradients) const {
  const int stages = mesh_.pipe->size(), here = mesh_.pipe->rank();
  for (int from = 0; from < stages; ++from) {
    const int to = (from + 1) % stages;
    const int64_t bytes = here == from ? to_next : here == to ? from_before : 0;
    comm::TransportAccess *up = activations_->transport(), *down = gradients_->transport();
    if (bytes > 0 && up) up->open(from, to, bytes);
    if (bytes > 0 && down && gradients) down->open(to, from, bytes);
  }
}

std::vector<Ranks::Group> Ranks::groups() const {
  std::vector<Group> out;
  auto add = [&](RankGroup what, const comm::Communicator* ranks) {
    const bool known = std::any_of(out.begin(), out.end(), [&](const Group& g) { return g.ranks == ranks; });
    if (ranks && !known && ranks->size() > 1) out.push_back({std::move(what), ranks});
  };
  // An axis that spans all ranks is the world itself, under the axis' name.
  add({Axis::tensor}, mesh_.tensor), add({Axis::sequence}, mesh_.sequence), add({Axis::data}, mesh_.data),
      add({Axis::pipe}, mesh_.pipe), add({Axis::world}, &world_);
  add({Axis::data, Purpose::near}, near_.get()), add({Axis::data, Purpose::across}, across_.get());
  add({Axis::data, Purpose::parts}, parts_.get());
  add({Axis::pipe, Purpose::activations}, activations_.get()),
      add({Axis::pipe, Purpose::gradients}, gradients_.get());
  for (const auto& [unit, group] : tied_) add(tied_by(unit), group.get());
  return out;
}

int64_t Ranks::reserve() const {
  const comm::TransportAccess* own = world_.transport();
  int64_t sum = 0;
  for (const Group& g : groups()) sum += own ? own->reserve(g.what, g.ranks->size()) : 0;
  return sum;
}

void Ranks::agree(comm::Communicator& group, const std::function<void()>& check,
                  const std::function<std::string(int rank)>& where) {
  std::string refusal;
  std::vector<int32_t> answers(size_t(2 * group.size()), 0);  // by rank: bytes of its refusal, exit code
  try {
    check();
  } catch (const Error& e) {
    refusal = e.what();
    answers[size_t(2 * group.rank())] = int32_t(refusal.size());
    answers[size_t(2 * group.rank() + 1)] = int32_t(e.exit());
  }
  group.all_reduce(Tensor(answers.data(), DType::int32, {2 * group.size()}, MemoryKind::host), on_host_,
                   {.what = "whether every rank can start"});
  for (int rank = 0; rank < group.size(); ++rank) {
    if (answers[size_t(2 * rank)] == 0) continue;
    refusal.resize(comm::length_from_peer(answers[size_t(2 * rank)], "why a rank cannot start"));
    group.broadcast(Tensor(refusal.data(), DType::uint8, {int64_t(refusal.size())}, MemoryKind::host), rank,
                    on_host_, {.what = "which rank cannot start"});
    try {  // all ranks wait until every rank knows; a rank abandoned by a faster one also knows
      group.barrier(on_host_, {.what = "before leaving"});
    } catch (const Error&) {
    }
    fail(Exit(answers[size_t(2 * rank + 1)]), "{}{}", where(rank), refusal);
  }
}

void Ranks::agree(const std::function<void()>& check) {
  agree(world_, check, [](int rank) { return fmt::format("found by rank {}: ", rank); });
}

std::vector<std::string> Ranks::texts(comm::Communicator& group, std::string mine) {
  std::vector<int64_t> lengths(size_t(group.size()), 0);
  lengths[size_t(group.rank())] = int64_t(mine.size());
  group.all_reduce(Tensor(lengths.data(), DType::int64, {group.size()}, MemoryKind::host), on_host_,
                   {.what = "lengths of texts"});
  std::vector<std::string> all(lengths.size());
  for (int rank = 0; rank < group.size(); ++rank) {
    std::string& text = all[size_t(rank)];
    if (rank == group.rank()) text = mine;
    text.resize(comm::length_from_peer(lengths[size_t(rank)], "a text of one rank"));
    if (!text.empty())
      group.broadcast(Tensor(text.data(), DType::uint8, {int64_t(text.size())}, MemoryKind::host), rank,
                      on_host_, {.what = "a text of one rank"});
  }
  return all;
}

void Ranks::take_first(const std::string& unit, Tensor of_first) {
  mesh_.tensor->broadcast(of_first, 0, on_host_, {.what = "values of the first rank"});
  mesh_.data->broadcast(of_first, 0, on_host_, {.what = "values of the first rank"});
  for (const auto& [name, group] : tied_)
    if (name == unit) group->broadcast(of_first, 0, on_host_, {.what = name});
}

void Ranks::all_reduce_on_host(Tensor t, std::string_view what) {
  world_.all_reduce(t, on_host_, {.what = what});
}

void Ranks::all_gather_on_host(Tensor full, Tensor shard, std::string_view what) {
  world_.all_gather(full, shard, on_host_, {.what = what});
}

void Ranks::sum_shared_gradients(zero::ParameterStore& store, Stream& stream) {
  for (const auto& [name, group] : tied_)
    for (int u = 0; u < store.units(); ++u)
      if (store.layout(u).name() == name && !store.layout(u).frozen())
        group->all_reduce(store.gradient_slice(u), stream, {.what = name});
  for (const comm::CuttingAxis& a : cutting_)
    for (int u = 0; a.ranks->size() > 1 && u < store.units(); ++u)
      for (const Range& r : store.layout(u).summed(store.slice(u), a.axis, a.cuts_rows))
        a.ranks->all_reduce(store.gradient_slice(u).slice(r), stream, {.what = store.layout(u).name()});
}

std::vector<bool> Ranks::units_summed_late(const zero::ParameterStore& store) const {
  std::vector<bool> late;
  for (int u = 0; u < store.units(); ++u) {
    const zero::FlatLayout& layout = store.layout(u);
    late.push_back(std::any_of(cutting_.begin(), cutting_.end(), [&](const comm::CuttingAxis& a) {
      return a.ranks->size() > 1 && !layout.summed({0, layout.numel()}, a.axis, a.cuts_rows).empty();
    }));
    for (const auto& [name, group] : tied_) late.back() = late.back() || name == layout.name();
  }
  return late;
}

double Ranks::sum(double value, std::string_view what) {
  sum({&value, 1}, what);
  return value;
}
void Ranks::sum(std::span<double> values, std::string_view what) {
  all_reduce_on_host(Tensor(values.data(), DType::fp64, {int64_t(values.size())}, MemoryKind::host), what);
}

double Ranks::sum_in_order(std::vector<double>& parts, std::string_view what) {
  const Tensor all(parts.data(), DType::fp64, {int64_t(parts.size())}, MemoryKind::host);
  for (const comm::CuttingAxis& a : cutting_) a.ranks->all_reduce(all, on_host_, {.what = what});
  mesh_.pipe->all_reduce(all, on_host_, {.what = what});
  double sum = 0;
  for (const double x : parts) sum += x;
  return sum;
}

}  // namespace cleave::runtime
