#include "plan/search.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/units.h"

namespace cleave::plan {
namespace {

using Json = nlohmann::ordered_json;

bool fits(const JobPlan& plan, const MemoryLimits& limits) {
  return std::all_of(plan.ranks.begin(), plan.ranks.end(), [&](const RankPlan& r) {
    return r.memory.total(MemoryKind::device) <= limits.device_bytes &&
           r.memory.total(MemoryKind::pinned) + r.memory.total(MemoryKind::host) <= limits.host_bytes;
  });
}

int64_t most(const JobPlan& plan, std::initializer_list<MemoryKind> kinds) {
  int64_t bytes = 0;
  for (const RankPlan& r : plan.ranks) {
    int64_t sum = 0;
    for (const MemoryKind k : kinds) sum += r.memory.total(k);
    bytes = std::max(bytes, sum);
  }
  return bytes;
}

// Returns the bytes beyond the limits on the rank with the most.
int64_t excess(const JobPlan& plan, const MemoryLimits& limits) {
  const int64_t device = most(plan, {MemoryKind::device}) - limits.device_bytes,
                host = most(plan, {MemoryKind::pinned, MemoryKind::host}) - limits.host_bytes;
  return std::max<int64_t>(device, 0) + std::max<int64_t>(host, 0);
}

// Returns batch keys of the same global batch with other micro-batches on another number of data-parallel
// ranks, or null if they do not divide.
Json batch_of(const config::DsConfig& c, int64_t micro, int64_t data) {
  if (micro < 1 || data < 1 || c.train_batch_size % (micro * data) != 0) return nullptr;
  return {{"train_batch_size", c.train_batch_size},
          {"train_micro_batch_size_per_gpu", micro},
          {"gradient_accumulation_steps", c.train_batch_size / (micro * data)}};
}

Json zero(const char* key, Json value) { return {{"zero_optimization", {{key, std::move(value)}}}}; }

// Merges two patches; values of the second one win.
Json joined(Json first, const Json& second) {
  first.merge_patch(second);
  return first;
}

Json optimizer_in_memory() { return zero("offload_optimizer", {{"device", "cpu"}, {"pin_memory", true}}); }
Json parameters_in_memory() { return zero("offload_param", {{"device", "cpu"}, {"pin_memory", true}}); }
// max_in_cpu = 0, because by default a rank keeps its first billion elements in host memory.
Json parameters_on_disk() {
  return zero("offload_param",
              {{"device", "nvme"}, {"nvme_path", "/local_nvme"}, {"max_in_cpu", 0}, {"pin_memory", true}});
}
// Uses a placeholder folder that users must replace.
Json optimizer_on_disk() {
  return zero("offload_optimizer", {{"device", "nvme"}, {"nvme_path", "/local_nvme"}, {"pin_memory", true}});
}

// Limits buffers to `elements`: for gradients to reduce, and in stage 3 for parameters that are gathered
// early or kept. Null if all of them are already smaller.
Json smaller_buffers(const config::DsConfig& c, int64_t elements) {
  Json keys = Json::object();
  const auto at_most = [&](const char* key, int64_t value, int64_t limit) {
    if (value > limit) keys[key] = limit;
  };
  at_most("reduce_bucket_size", c.zero.reduce_bucket_size, elements);
  if (c.zero.stage == 3) {
    at_most("stage3_prefetch_bucket_size", c.zero.stage3_prefetch_bucket_size, 0);
    at_most("stage3_max_live_parameters", c.zero.stage3_max_live_parameters, elements);
    at_most("stage3_param_persistence_threshold", c.zero.stage3_param_persistence_threshold, 0);
  }
  if (keys.empty()) return nullptr;
  return {{"zero_optimization", std::move(keys)}};
}

constexpr int64_t kFewRows = 1024, kFewElements = 1000;

bool recomputes(const config::DsConfig& c) {
  return c.checkpointing.interval > 0 || c.checkpointing.number > 0;
}

// Recomputes what does not fit (plan/fit_layers.h), instead of the layers that the configuration names.
Json recompute_to_fit(const config::DsConfig& c) {
  Json keys = {{"policy", "fit"}};
  if (recomputes(c) || c.checkpointing.by_rank())
    for (const char* key : {"interval", "number_checkpoints", "cpu_checkpointing", "partition_activations",
                            "full_layers", "selective_layers"})
      keys[key] = nullptr;
  return {{"activation_checkpointing", std::move(keys)}};
}

// Returns changes that save memory, lowest time cost first.
std::vector<Json> savings(const Candidate& t) {
  const config::DsConfig& c = t.config;
  const MeshShape& mesh = t.plan.mesh;
  std::vector<Json> out;
  for (int stage = c.zero.stage + 1; mesh.data * mesh.sequence > 1 && stage <= 3; ++stage)
    out.push_back(zero("stage", stage));
  for (const int64_t elements : {int64_t{5'000'000}, kFewElements})
    out.push_back(smaller_buffers(c, elements));
  const int64_t micro = c.train_micro_batch_size_per_gpu;
  for (const int64_t smaller : {micro / 2, int64_t{1}})
    if (smaller < micro) out.push_back(batch_of(c, smaller, mesh.data));
  // Fewer rows of logits at a time: reads the head's weights more often.
  if (c.logits_rows == 0 || c.logits_rows > kFewRows)
    out.push_back({{"cleave", {{"logits_rows", kFewRows}}}});
  if (!recomputes(c)) out.push_back({{"activation_checkpointing", {{"interval", 1}}}});
  if (c.zero.offload_optimizer.device == config::OffloadDevice::none) out.push_back(optimizer_in_memory());
  // Stage 3 is required for parameter offload; keys already set are not changes.
  const Json stage3 = c.zero.stage == 3 ? Json::object() : zero("stage", 3);
  if (c.zero.offload_param.device == config::OffloadDevice::none)
    out.push_back(joined(stage3, parameters_in_memory()));
  if (c.zero.offload_optimizer.device != config::OffloadDevice::nvme) out.push_back(optimizer_on_disk());
  if (c.zero.offload_param.device != config::OffloadDevice::nvme)
    out.push_back(joined(stage3, parameters_on_disk()));
  auto with_axis = [&](const char* key, Json value) {
    Json patch = batch_of(c, micro, mesh.data / 2);
    if (mesh.data % 2 != 0 || patch.is_null()) return;
    patch[key] = std::move(value);
    out.push_back(std::move(patch));
  };
  with_axis("tensor_parallel", {{"autotp_size", mesh.tensor * 2}});
  with_axis("pipeline", {{"stages", mesh.pipe * 2}});
  with_axis("sequence_parallel_size", mesh.sequence * 2);
  std::erase_if(out, [](const Json& patch) { return patch.is_null(); });
  return out;
}

std::optional<Json> parse(const std::string& text) {
  Json parsed = Json::parse(text, nullptr, false, true);
  if (parsed.is_discarded() || !parsed.is_object()) return std::nullopt;
  return parsed;
}

class Search {
 public:
  Search(const Json& base, const MemoryLimits& limits, const TryConfig& plan)
      : base_(base), limits_(limits), plan_(plan) {}

  std::optional<Candidate> candidate(const Json& patch, bool every_rank) const {
    std::optional<Candidate> t = plan_(joined(base_, patch).dump(2), every_rank);
    if (t) t->change = patch.dump();
    return t;
  }
  bool fit(const Candidate& t) const { return fits(t.plan, limits_); }
  int64_t over(const Candidate& t) const { return excess(t.plan, limits_); }

 private:
  const Json& base_;
  const MemoryLimits& limits_;
  const TryConfig& plan_;
};

// Returns the change with the least memory: one saving, or two if no single one helps. Nothing if none helps.
std::optional<std::pair<Candidate, Json>> best_step(const Candidate& now, const Json& patch,
                                                    const Search& search) {
  std::optional<std::pair<Candidate, Json>> best;
  int64_t least = search.over(now);
  const auto consider = [&](Json both) {
    std::optional<Candidate> t = search.candidate(both, true);
    if (!t || search.over(*t) >= least) return;
    least = search.over(*t);
    best.emplace(*std::move(t), std::move(both));
  };
  const std::vector<Json> single = savings(now);
  for (const Json& more : single) consider(joined(patch, more));
  for (size_t i = 0; i < single.size() && !best; ++i)
    for (size_t j = i + 1; j < single.size(); ++j) consider(joined(joined(patch, single[i]), single[j]));
  return best;
}

// Applies changes to `from`, the largest saving first, until the job fits or none helps.
Candidate descend(Candidate from, Json patch, const Search& search) {
  std::pair<Candidate, Json> now{std::move(from), std::move(patch)};
  while (!search.fit(now.first)) {
    std::optional<std::pair<Candidate, Json>> next = best_step(now.first, now.second, search);
    if (!next) break;
    now = *std::move(next);
  }
  return now.first;
}

// Returns all savings that keep the ranks.
Json all_savings(const config::DsConfig& c, const MeshShape& mesh) {
  config::DsConfig sharded = c;
  sharded.zero.stage = 3;
  Json patch = joined(joined(zero("stage", 3), optimizer_in_memory()), parameters_in_memory());
  for (const Json& more : {smaller_buffers(sharded, kFewElements), batch_of(c, 1, mesh.data)})
    if (!more.is_null()) patch = joined(patch, more);
  return joined(patch,
                {{"cleave", {{"logits_rows", kFewRows}}}, {"activation_checkpointing", {{"interval", 1}}}});
}

// Returns the combination with the least memory, or the first that fits: applies the largest savings one by
// one, which can get stuck if no single one helps; then repeats it starting from all savings.
Candidate smallest(const Candidate& given, const Search& search) {
  Candidate least = descend(given, Json::object(), search);
  if (search.fit(least)) return least;
  const Json all = all_savings(given.config, given.plan.mesh);
  if (std::optional<Candidate> from = search.candidate(all, true)) {
    Candidate other = descend(*std::move(from), all, search);
    if (search.over(other) < search.over(least)) return other;
  }
  return least;
}

}  // namespace

Changes changes_that_fit(const Candidate& given, const MemoryLimits& limits, const TryConfig& plan,
                         int most) {
  const std::optional<Json> base = parse(given.text);
  if (!base) return {};
  const Search search(*base, limits, plan);
  Changes out;
  std::vector<Json> partial;
  for (const Json& patch : savings(given)) {
    std::optional<Candidate> t = search.candidate(patch, true);
    if (!t) continue;
    if (search.fit(*t))
      out.fitting.push_back(*std::move(t));
    else if (search.over(*t) < search.over(given))
      partial.push_back(patch);
    if (int(out.fitting.size()) == most) return out;
  }
  for (size_t i = 0; i < partial.size(); ++i)
    for (size_t j = i + 1; j < partial.size() && int(out.fitting.size()) < most; ++j)
      if (std::optional<Candidate> t = search.candidate(joined(partial[i], partial[j]), true);
          t && search.fit(*t))
        out.fitting.push_back(*std::move(t));
  if (!out.fitting.empty()) return out;
  Candidate least = smallest(given, search);
  if (search.fit(least))
    out.fitting.push_back(std::move(least));
  else if (!least.change.empty())
    out.smallest = std::move(least);
  return out;
}

std::string format_changes(const Candidate& given, const Changes& changes) {
  const auto both = [&](const Candidate& t, std::initializer_list<MemoryKind> kinds, std::string_view name) {
    const int64_t before = most(given.plan, kinds), after = most(t.plan, kinds);
    return before == after ? ""
                           : fmt::format(", {} {} -> {}", name, format_bytes(before), format_bytes(after));
  };
  const auto line = [&](const Candidate& t) {
    return fmt::format("\n  {}{}{}{}", t.change, both(t, {MemoryKind::device}, "device"),
                       both(t, {MemoryKind::pinned, MemoryKind::host}, "host"),
                       both(t, {MemoryKind::disk}, "disk"));
  };
  if (!changes.fitting.empty()) {
    std::string out =
        "changes that make it fit (merge these keys into the ds_config; each line was planned):";
    for (const Candidate& t : changes.fitting) out += line(t);
    return out;
  }
  constexpr std::string_view kNone = "no change of the ds_config was found that makes it fit";
  constexpr std::string_view kElse = "use more ranks, a shorter --seq_len, or a smaller model";
  if (!changes.smallest) return fmt::format("{}; {}", kNone, kElse);
  return fmt::format("{}; the smallest layout found does not fit either:{}\n{}", kNone,
                     line(*changes.smallest), kElse);
}

namespace {

// From lowest cost to largest saving; the first that fits is the fastest of them.
std::vector<Json> memory_savings() {
  auto sharded = [](int stage) { return joined(zero("stage", stage), zero("overlap_comm", true)); };
  const Json offloaded = joined(sharded(3), parameters_in_memory());
  return {sharded(1),
          sharded(2),
          sharded(3),
          joined(sharded(2), optimizer_in_memory()),
          joined(sharded(3), optimizer_in_memory()),
          joined(offloaded, optimizer_in_memory()),
          joined(offloaded, optimizer_on_disk())};
}
constexpr size_t kOnDevice = 3;  // the first ones move nothing off the device

// State of a search.
class Layouts {
 public:
  // Relative accuracy of predictions; within it, less memory is better.
  static constexpr double kTie = 1e-3;

  Layouts(const Search& search, const DeviceModel& device) : search_(search), device_(device) {}

  // Limits the savings to the first ones.
  void use(size_t savings) { used_ = savings; }
  size_t fitting() const { return order_.size(); }

  // Keeps the first saving, from index `first` on, that makes the shape fit and returns its index, or the
  // number of savings if none does. Nothing if the job cannot be laid out.
  struct Added {
    size_t saving;
    double seconds = 0;
  };
  std::optional<Added> add(const Json& shape, size_t first) {
    for (size_t i = first; i < used_; ++i) {
      const std::optional<Candidate> t = search_.candidate(joined(shape, savings_[i]), false);
      ++tried_;
      if (!t) return std::nullopt;
      if (!search_.fit(*t)) continue;
      order_.push_back({predict(t->config, t->plan, device_).total(), most(t->plan, {MemoryKind::device}),
                        most(t->plan, {MemoryKind::pinned, MemoryKind::host}), joined(shape, savings_[i])});
      return Added{i, order_.back().seconds};
    }
    return Added{used_};
  }

  // Replans with all ranks, because only one rank per stage was planned so far.
  std::optional<Suggestion> fastest() {
    std::stable_sort(order_.begin(), order_.end(),
                     [](const Tried& a, const Tried& b) { return a.seconds < b.seconds; });
    for (auto first = order_.begin(); first != order_.end();) {
      const auto tied = [&](const Tried& t) { return t.seconds <= first->seconds * (1 + kTie); };
      const auto last = std::find_if_not(first, order_.end(), tied);
      std::stable_sort(first, last, [](const Tried& a, const Tried& b) {
        return std::pair(a.device_bytes, a.host_bytes) < std::pair(b.device_bytes, b.host_bytes);
      });
      for (; first != last; ++first)
        if (std::optional<Candidate> t = search_.candidate(first->patch, true); t && search_.fit(*t)) {
          t->seconds = first->seconds;
          return Suggestion{*std::move(t), tried_, int(order_.size())};
        }
    }
    return std::nullopt;
  }

 private:
  const Search& search_;
  const DeviceModel& device_;
  const std::vector<Json> savings_ = memory_savings();
  size_t used_ = savings_.size();
  // Fitting configuration, for the largest rank of a stage.
  struct Tried {
    double seconds;
    int64_t device_bytes, host_bytes;
    Json patch;
  };
  std::vector<Tried> order_;
  int tried_ = 0;
};

// Adds all batch and sequence sizes of `ranks` ranks with these tensor and pipe axes. Cuts sequences only if
// a whole one is too large for a rank without offload, or if there are more ranks than samples: less than one
// sample per rank needs it, while for more a smaller micro-batch is enough.
void add_sizes(Layouts& layouts, const config::DsConfig& c, int ranks, int most_sequence, const Json& axes) {
  bool cuts = false;
  for (int sequence = 1; sequence <= most_sequence && (sequence == 1 || cuts); sequence *= 2) {
    if (ranks % sequence != 0) return;
    // A larger micro-batch needs at least the savings of a smaller one, and from the first slower one on, all
    // are slower, because fewer of them fill a pipeline.
    Layouts::Added last{0};
    for (int64_t micro = 1; micro <= (sequence == 1 ? 64 : 1); micro *= 2) {
      Json shape = batch_of(c, micro, ranks / sequence);
      if (shape.is_null()) {
        cuts = cuts || micro == 1;
        continue;
      }
      shape.update(axes);
      if (sequence > 1 || c.sequence_ranks() > 1) shape["sequence_parallel_size"] = sequence;
      shape.update(recompute_to_fit(c));
      const std::optional<Layouts::Added> now = layouts.add(shape, last.saving);
      if (!now && sequence > 1) return;
      if (sequence == 1 && micro == 1) cuts = now && now->saving >= kOnDevice;
      if (!now) continue;
      if (last.seconds > 0 && now->seconds > last.seconds * (1 + Layouts::kTie)) break;
      last = *now;
    }
  }
}

// Returns the pipelines with this number of stages: each schedule that idles less than 1F1B, and for the
// interleaved one some numbers of chunks.
std::vector<Json> pipelines_of(const config::DsConfig& c, int stages) {
  std::vector<Json> out;
  const auto add = [&](const char* schedule, int chunks) {
    Json keys = {{"stages", stages}};
    if (c.pipeline.schedule != schedule) keys["schedule"] = schedule;
    if (c.pipeline.virtual_stages != chunks) keys["virtual_stages"] = chunks;
    out.push_back({{"pipeline", std::move(keys)}});
  };
  add("1f1b", 1);
  if (stages == 1) return out;
  add("zb-h1", 1);
  for (const int chunks : {2, 4, 8}) add("interleaved", chunks);
  return out;
}

void add_axes(Layouts& layouts, const Candidate& given, const DeviceModel& device) {
  const int world = given.plan.mesh.size();
  for (int tensor = 1; tensor <= std::min(world, device.per_node); ++tensor)
    for (int pipe = 1; pipe * tensor <= world && pipe <= 64; ++pipe)
      for (Json axes : pipelines_of(given.config, pipe)) {
        if (world % (tensor * pipe) != 0) continue;
        axes["tensor_parallel"] = {{"autotp_size", tensor}};
        add_sizes(layouts, given.config, world / (tensor * pipe), device.per_node / tensor, axes);
      }
}

std::string memory_of(const JobPlan& plan) {
  const int64_t host = most(plan, {MemoryKind::pinned, MemoryKind::host});
  return fmt::format("{} of device{} memory", format_bytes(most(plan, {MemoryKind::device})),
                     host > 0 ? fmt::format(" and {} of host", format_bytes(host)) : "");
}

}  // namespace

std::string format_gain(const Candidate& given, const Suggestion& found, const MemoryLimits& limits,
                        const DeviceModel& device) {
  const double now = predict(given.config, given.plan, device).total(), then = found.best.seconds;
  const double share = 1 - then / now;
  return fmt::format("the given one: {:.4g} s a step, {}{}\nthis one:      {:.4g} s a step, {}: {}\n", now,
                     memory_of(given.plan), fits(given.plan, limits) ? "" : ", which does not fit", then,
                     memory_of(found.best.plan),
                     share > 0.0005    ? fmt::format("{:.1f} % less time", share * 100)
                     : share < -0.0005 ? fmt::format("{:.1f} % more time", -share * 100)
                                       : "the same time");
}

std::optional<Suggestion> suggest(const Candidate& given, const MemoryLimits& limits,
                                  const DeviceModel& device, const TryConfig& plan) {
  const std::optional<Json> base = parse(given.text);
  if (!base) return std::nullopt;
  const Search search(*base, limits, plan);
  Layouts layouts(search, device);
  // Offloaded state takes longer than recomputation.
  for (const size_t savings : {kOnDevice, memory_savings().size()}) {
    layouts.use(savings);
    if (layouts.fitting() == 0) add_axes(layouts, given, device);
  }
  return layouts.fastest();
}

}  // namespace cleave::plan
