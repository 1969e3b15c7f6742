#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "comm/gpu_reserve.h"
#include "core/json_path.h"
#include "core/units.h"
#include "device/gpu_problems.h"
#include "plan/job_plan.h"
#include "plan/memory_json.h"

namespace cleave::plan {
namespace {

using nlohmann::json;

std::string_view link_of(const GroupTraffic& t) {
  return t.between_nodes ? "between nodes" : "inside a node";
}

// Orders ranks by device memory, then other memory, then traffic, to find the largest one.
auto weight(const RankPlan& r) {
  return std::tuple(r.memory.total(MemoryKind::device),
                    r.memory.total(MemoryKind::pinned) + r.memory.total(MemoryKind::host), r.sent_total());
}

// One row per group, and one column per collective that the rank uses.
std::string table_of(const RankPlan& r) {
  std::vector<comm::Collective> used;
  for (int i = 0; i < comm::kCollectives; ++i)
    if (std::any_of(r.sent.begin(), r.sent.end(), [&](auto& t) { return t.bytes[comm::Collective(i)] > 0; }))
      used.push_back(comm::Collective(i));
  if (used.empty()) return "  sends nothing\n";
  std::string out = fmt::format("  {:<18}", "sent in one step");
  for (const comm::Collective c : used) out += fmt::format("{:>16}", comm::name_of(c));
  out += '\n';
  for (const GroupTraffic& t : r.sent) {
    if (t.total() == 0) continue;
    out += fmt::format("  {:<18}", name_of(t.group));
    for (const comm::Collective c : used)
      out += fmt::format("{:>16}", t.bytes[c] ? format_bytes(t.bytes[c]) : "-");
    out += fmt::format("  {}\n", link_of(t));
  }
  return out + fmt::format("  {:<18}{:>16}, of them {} between nodes\n", "total",
                           format_bytes(r.sent_total()), format_bytes(r.sent_between_nodes()));
}

// Empty if no step is recorded.
std::string format_recorded(const RankPlan& r) {
  if (r.recorded == 0) return "";
  return fmt::format("  a recorded step of the rank takes {} in the output folder\n",
                     format_bytes(r.recorded));
}

// Empty if no step was counted.
std::string format_moved(const RankPlan& r) {
  const double all = r.moved(), least = r.least_moved();
  if (all == 0) return "";
  return fmt::format("  its kernels read and write {} of memory per step; the minimum is {} ({:.0f} %)\n",
                     format_bytes(int64_t(all)), format_bytes(int64_t(least)), 100 * least / all);
}

json as_json(const kernels::Work& w) {
  return {{"op", w.op},       {"type", name_of(w.type)}, {"variant", w.variant},  {"launches", w.launches},
          {"flops", w.flops}, {"bytes", w.bytes},        {"least_bytes", w.least}};
}

json as_json(const comm::CommBytes& bytes) {
  json out = json::object();
  for (int i = 0; i < comm::kCollectives; ++i)
    if (const int64_t sent = bytes[comm::Collective(i)])
      out[std::string(comm::name_of(comm::Collective(i)))] = sent;
  return out;
}

}  // namespace

std::vector<const RankPlan*> largest_of_stages(const JobPlan& plan) {
  std::map<int, const RankPlan*> stages;
  for (const RankPlan& r : plan.ranks) {
    const RankPlan*& most = stages[r.place.pipe];
    if (!most || weight(r) > weight(*most)) most = &r;
  }
  std::vector<const RankPlan*> out;
  for (const auto& [stage, r] : stages) out.push_back(r);
  return out;
}

std::string format(const JobPlan& plan) {
  const MeshShape& m = plan.mesh;
  std::string out = fmt::format("mesh: {} ranks = {}\n", m.size(), name_of(m));
  const std::string frozen = plan.frozen > 0
                                 ? fmt::format(" ({} frozen, {} trained)", format_count(plan.frozen),
                                               format_count(plan.params - plan.frozen))
                                 : "";
  out += fmt::format("model: {}, {} parameters{}", plan.model, format_count(plan.params), frozen);
  out += plan.flops > 0 ? fmt::format(", {:.4g} TFLOP a step\n", plan.flops / 1e12) : "\n";
  if (!plan.pipeline.empty()) out += plan.pipeline + '\n';
  if (!plan.recomputed.empty()) out += "layers that recompute: " + plan.recomputed + '\n';
  if (!plan.tried_all) out += "ranks at the ends of the axes also represent those between them\n";
  const std::vector<const RankPlan*> stages = largest_of_stages(plan);
  const RankPlan* largest = stages[0];
  out += fmt::format("\n{:>6}{:>8}{:>14}{:>14}{:>14}{:>14}{}\n", "stage", "rank", "device", "pinned", "host",
                     "disk", plan.counts_sent ? "    sent in a step" : "");
  for (const RankPlan* r : stages) {
    auto bytes = [&](MemoryKind k) { return format_bytes(r->memory.total(k)); };
    out += fmt::format("{:>6}{:>8}{:>14}{:>14}{:>14}{:>14}{}\n", r->place.pipe, r->ranks[0],
                       bytes(MemoryKind::device), bytes(MemoryKind::pinned), bytes(MemoryKind::host),
                       bytes(MemoryKind::disk),
                       plan.counts_sent ? fmt::format("{:>18}", format_bytes(r->sent_total())) : "");
    if (weight(*r) > weight(*largest)) largest = r;
  }
  return out +
         fmt::format(
             "\nrank {} needs the most, all of it from the first step on, at rest as at the peak:\n{}{}{}{}",
             largest->ranks[0], format(largest->memory), plan.counts_sent ? table_of(*largest) : "",
             format_moved(*largest), format_recorded(*largest));
}

int64_t most_device_bytes(const JobPlan& plan) {
  int64_t most = 0;
  for (const RankPlan& r : plan.ranks) most = std::max(most, r.memory.total(MemoryKind::device));
  return most;
}

GpuReserve gpu_reserve(const JobPlan& plan) {
  const MeshShape& m = plan.mesh;
  using Purpose = RankGroup::Purpose;
  int64_t nccl = comm::nccl_reserve({Axis::data}, m.data) + comm::nccl_reserve({Axis::tensor}, m.tensor) +
                 comm::nccl_reserve({Axis::sequence}, m.sequence);
  for (const Purpose p : {Purpose::activations, Purpose::gradients})
    nccl += comm::nccl_reserve({Axis::pipe, p}, m.pipe);
  int64_t of_parts = 0;
  for (const RankPlan& r : plan.ranks) {
    int64_t mine = 0;
    for (const GroupTraffic& t : r.sent)
      for (const Purpose p : {Purpose::near, Purpose::across, Purpose::parts, Purpose::tied})
        if (t.group.purpose == p) mine += comm::nccl_reserve(t.group, 2);
    of_parts = std::max(of_parts, mine);
  }
  return {kCudaReserve, nccl + of_parts, 0};
}

std::string GpuReserve::line(int64_t engine) const {
  std::string out = fmt::format("a GPU also needs {} for CUDA", format_bytes(cuda));
  if (nccl > 0) out += fmt::format("{} {} for NCCL", torch == 0 ? " and" : ",", format_bytes(nccl));
  if (!torch) return out + ", and memory for what PyTorch keeps: a trace adds it\n";
  if (*torch > 0) out += fmt::format(" and {} for PyTorch", format_bytes(*torch));
  return out + fmt::format(": {} in all\n", format_bytes(engine + cuda + nccl + *torch));
}

std::string to_json(const JobPlan& plan) {
  json ranks = json::array();
  for (const RankPlan& r : plan.ranks) {
    json sent = json::object(), links = json::object(), place = json::object();
    for (const MeshAxis& a : kMeshAxes) place[std::string(name_of(a.axis))] = r.place.*a.place;
    for (const GroupTraffic& t : r.sent)
      sent[name_of(t.group)] = as_json(t.bytes), links[name_of(t.group)] = link_of(t);
    json work = json::array();
    for (const kernels::Work& w : r.work) work.push_back(as_json(w));
    ranks.push_back({{"ranks", r.ranks},
                     {"place", place},
                     {"memory", as_json(r.memory)},
                     {"comm_bytes", sent},
                     {"links", links},
                     {"kernels", work},
                     {"recorded_bytes", r.recorded},
                     {"bytes_moved", r.moved()},
                     {"least_bytes_moved", r.least_moved()},
                     {"comm_bytes_total", r.sent_total()},
                     {"comm_bytes_between_nodes", r.sent_between_nodes()}});
  }
  const GpuReserve reserve = gpu_reserve(plan);
  return json{{"reserve", {{"cuda", reserve.cuda}, {"nccl", reserve.nccl}}},
              {"model", path_in_json(plan.model)},
              {"parameters", plan.params},
              {"frozen_parameters", plan.frozen},
              {"mesh", as_json(plan.mesh)},
              {"world_size", plan.mesh.size()},
              {"flops_per_step", plan.flops},
              {"pipeline", plan.pipeline},
              {"recomputed", plan.recomputed},
              {"idle_share", plan.idle_share},
              {"every_rank_tried", plan.tried_all},
              {"ranks", ranks}}
      .dump(2);
}

}  // namespace cleave::plan
