// Forwards without training: losses, logits of windows, and incremental generation.
#include <algorithm>
#include <array>

#include "device/copy.h"
#include "runtime/engine_state.h"
#include "runtime/step_batches.h"

namespace cleave::runtime {
namespace {

// Logits in host memory, gathered on every rank from ranks with other rows (`sharers`) or other classes.
class LogitsOfRanks {
 public:
  // Resizes `memory`, which must outlive this object.
  LogitsOfRanks(const comm::Mesh& mesh, comm::Communicator& sharers, int64_t rows, const model::Head& head,
                std::vector<float>& memory)
      : mesh_(mesh), sharers_(sharers), classes_(head.classes()) {
    const int64_t tensor = mesh.tensor->size(), columns = head.columns();
    memory.resize(size_t(sharers.size() * tensor * rows * columns));
    all_ = Tensor(memory.data(), DType::fp32, {sharers.size(), tensor, rows, columns}, MemoryKind::host);
    here_ = all_.rows(Range{0, 1}.shifted(sharers.rank())).view({tensor, rows, columns});
    mine_ = here_.rows(Range{0, 1}.shifted(mesh.tensor->rank())).view({rows, columns});
  }

  const Tensor& mine() const { return mine_; }  // [rows, columns], written on the last rank of the pipe

  void gather(Stream& comm) const {
    mesh_.pipe->broadcast(mine_, mesh_.pipe->size() - 1, comm, {.what = "logits"});
    mesh_.tensor->all_gather(here_, mine_, comm, {.what = "logits"});
    sharers_.all_gather(all_, here_, comm, {.what = "logits"});
    comm.synchronize();
  }

  // Returns true if the memory already has the final layout: one rank has all rows, with all classes and no
  // padding.
  bool are_whole() const { return all_.numel() == mine_.numel() && mine_.dim(1) == classes_; }

  void copy_row(int64_t sharer, int64_t row, float* to) const {
    const int64_t tensor = mesh_.tensor->size(), rows = mine_.dim(0), columns = mine_.dim(1);
    for (int64_t t = 0; t < tensor; ++t) {
      const float* from = all_.as<float>() + ((sharer * tensor + t) * rows + row) * columns;
      std::copy_n(from, std::clamp<int64_t>(classes_ - t * columns, 0, columns), to + t * columns);
    }
  }

 private:
  const comm::Mesh& mesh_;
  comm::Communicator& sharers_;
  int64_t classes_;
  Tensor all_, here_, mine_;  // [rank of the sharers, rank of the tensor axis, row, column], and parts of it
};

}  // namespace

std::optional<double> Evaluation::accuracy() const {
  if (!hits || targets == 0) return {};
  return double(*hits) / double(targets);
}

Evaluation Engine::evaluate(const BatchSource& data, int micros, const std::function<bool()>& stop) {
  State& s = state();
  const int most = s.pipeline.evaluation.shape.micros;
  std::array<double, 3> sums{};
  auto& [loss, valid, hits] = sums;
  const auto add = [&](double& sum, const Tensor& of, int micros_now) {
    const std::vector<double> each = to_host<double>(of, s.streams->compute);
    for (size_t i = 0; i < each.size(); ++i)
      if (int64_t(i) % of.dim(1) < micros_now) sum += each[i];
  };
  for (int begin = 0; begin < micros; begin += most) {
    if (stop && stop()) return {};
    pipeline::ScheduleShape shape = s.pipeline.evaluation.shape;
    shape.micros = std::min(most, micros - begin);
    const StepBatches batches(data, shape.micros, begin);
    if (s.reports_loss() && s.settings.place.sequence == 0)
      for (const Batch& batch : batches.all()) valid += double(batch.valid_targets);
    const Work work{.train = false,
                    .batches = {batches.all().begin(), batches.all().end()},
                    .losses = s.layers().losses,
                    .hits = s.layers().hits};
    s.layers().clear_side_losses();
    s.run_forward(shape, work);
    if (s.reports_side_loss()) add(loss, s.layers().side_losses, shape.micros);
    if (s.reports_loss()) add(loss, s.layers().losses, shape.micros);
    if (s.reports_hits()) add(hits, s.layers().hits, shape.micros);
  }
  s.ranks.sum(sums, "evaluation");
  Evaluation result{.loss = loss / valid, .targets = int64_t(valid)};
  if (s.model.head->counts_hits()) result.hits = int64_t(hits);
  return result;
}

std::vector<float> Engine::predict(const Batch& batch, std::optional<Range> wanted) {
  State& s = state();
  const model::Head& head = *s.model.head;
  const int64_t part = s.model.rows_per_sample, sequence = s.settings.mesh.sequence;
  const Range every_row{0, samples_per_micro() * part * sequence};
  const Range result = wanted.value_or(every_row);
  CHECK(intersect(result, every_row) == result, "rows {} to {} of a micro-batch of {}", result.begin,
        result.end, every_row.end);
  // Ranks that share sequences have different rows, so each gives all its rows.
  const Range local = sequence == 1 ? result : Range{0, samples_per_micro() * part};
  std::vector<float> every;
  const LogitsOfRanks logits(s.ranks.mesh(), *s.ranks.mesh().sequence, local.size(), head, every);
  s.make_room_for_logits(local.size() * head.columns());
  s.run_logits({.train = false, .batches = {batch}}, logits.mine(), local);
  logits.gather(s.streams->comm());
  if (logits.are_whole()) return every;
  std::vector<float> out(size_t(result.size() * head.classes()));
  for (int64_t row = result.begin; row < result.end; ++row) {
    const int64_t sample = row / (part * sequence), position = row % (part * sequence);
    logits.copy_row(position / part, sample * part + position % part - local.begin,
                    &out[size_t((row - result.begin) * head.classes())]);
  }
  return out;
}

template <class T>
std::vector<T> Engine::layer_state(const std::string& name) {
  State& s = state();
  int64_t numel = -1;
  for (const auto& layer : s.model.layers)
    for (const model::LayerState& spec : layer->states())
      if (spec.name == name) {
        require(spec.dtype == dtype_of<T>(), Exit::usage,
                "state {} of {}: wrong type (it is {}, got a request for {})", name, s.model.name,
                name_of(spec.dtype), name_of(dtype_of<T>()));
        numel = checkpoint::numel_of(spec.shape);
      }
  require(numel >= 0, Exit::usage, "{}: no layer has a state {}", s.model.name, name);
  synchronize();
  std::vector<T> whole(size_t(numel), 0);
  if (const Tensor t = s.layers().stage.states().find(name); t.defined() && s.layers().speaks)
    whole = to_host<T>(t, s.streams->compute);
  // Only one rank has it, so the sum is exact.
  s.ranks.world().all_reduce(Tensor(whole.data(), dtype_of<T>(), {numel}, MemoryKind::host),
                             s.streams->comm(), {.what = "state of a layer"});
  s.streams->comm().synchronize();
  return whole;
}

template std::vector<float> Engine::layer_state<float>(const std::string& name);
template std::vector<int64_t> Engine::layer_state<int64_t>(const std::string& name);

int64_t Engine::texts() const { return state().texts ? state().texts->count() : 0; }

std::vector<float> Engine::extend(const std::vector<TextPart>& parts) {
  State& s = state();
  CHECK(s.texts, "an engine that keeps no keys and values (EngineOptions::texts)");
  const std::vector<std::vector<PassOfTexts>> by_sharer = s.texts->extend(parts);
  std::vector<std::vector<size_t>> order(by_sharer.size());  // parts of each sharer
  size_t most = 1;
  for (size_t p = 0; p < by_sharer.size(); ++p) {
    for (const PassOfTexts& pass : by_sharer[p])
      order[p].insert(order[p].end(), pass.parts.begin(), pass.parts.end());
    most = std::max(most, order[p].size());
  }
  const comm::Mesh& mesh = s.ranks.mesh();
  const model::Head& head = *s.model.head;
  const LogitsOfRanks logits(mesh, *mesh.data, int64_t(most), head, s.text_logits);
  s.make_room_for_logits(int64_t(most) * head.columns());
  int64_t done = 0;
  for (const PassOfTexts& pass : by_sharer[size_t(mesh.data->rank())]) {
    const Batch batch = batch_of(pass.rows.tokens, pass.rows.tokens);
    const Range to = Range{0, pass.wanted.size()}.shifted(done);
    s.run_logits({.train = false, .batches = {batch}, .texts = &pass.rows}, logits.mine().rows(to),
                 pass.wanted);
    done = to.end;
  }
  logits.gather(s.streams->comm());
  std::vector<float> out(parts.size() * size_t(head.classes()));
  for (size_t p = 0; p < order.size(); ++p)
    for (size_t row = 0; row < order[p].size(); ++row)
      logits.copy_row(int64_t(p), int64_t(row), &out[order[p][row] * size_t(head.classes())]);
  return out;
}

// Allocation may wait for all work of a GPU, including that of other ranks on the same GPU that wait for this
// rank. So all ranks allocate before any of them starts the pass.
void Engine::State::make_room_for_logits(int64_t numel) {
  if (!settings.device.is_cuda() || numel <= logits_room) return;
  ranks.agree([&] {
    if (!layers().stage.shape().last) return;
    logits_there = {};
    logits_there = memory.allocate(MemoryKind::device, Category::staging, DType::fp32, {numel}, "logits");
  });
  logits_room = numel;
}

void Engine::State::run_logits(Work work, const Tensor& logits, Range rows) {
  pipeline::ScheduleShape shape = pipeline.evaluation.shape;
  shape.micros = 1;
  Tensor there;
  if (logits_there.defined() && rows.size() > 0)
    there = logits_there.tensor().slice({0, logits.numel()}).view(logits.shape());
  if (rows.size() > 0) work.logits = there.defined() ? there : logits;
  work.rows = rows;
  run_forward(shape, work);
  if (there.defined()) copy(logits, there, streams->compute), streams->compute.synchronize();
}

void Engine::State::run_forward(const pipeline::ScheduleShape& shape, const Work& work) {
  const int stage = settings.place.pipe;
  Executor(layers().stage, links(), streams->compute, streams->comm())
      .run(pipeline::with_transfers(pipeline::forward_only(shape, stage), shape, stage), shape, work);
  streams->synchronize();
  rank->store.synchronize_disk();
}

}  // namespace cleave::runtime
