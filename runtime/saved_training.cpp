#include "runtime/saved_training.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/deepspeed_checkpoint.h"
#include "checkpoint/manifest.h"
#include "core/printable.h"
#include "core/range.h"
#include "model/config_json.h"
#include "runtime/weight_names.h"

namespace cleave::runtime {
namespace fs = std::filesystem;
using checkpoint::Elements;
using nlohmann::json;
namespace {

// Detects a folder with a DeepSpeed file and without a manifest.
bool is_of_deepspeed(const fs::path& dir, const std::string& tag) {
  std::error_code error;
  const bool named = tag != "latest" || fs::exists(dir / "latest", error);
  const std::string name = named && tag == "latest" ? checkpoint::latest_checkpoint(dir) : tag;
  if (!checkpoint::is_plain_name(name) || fs::exists(dir / name / "manifest.json", error)) return false;
  const auto files = fs::directory_iterator(dir / name, error);
  return std::any_of(begin(files), end(files), [](const fs::directory_entry& file) {
    return file.path().filename().string().ends_with("_states.pt");
  });
}

// Calls piece(range, memory) for the record's elements in their order.
void in_pieces(int64_t numel, const std::function<void(Range, std::span<float>)>& piece) {
  std::vector<float> memory(size_t(std::min(numel, checkpoint::kWeightPiece)));
  for (Range window{0, 0}; window.begin < numel; window.begin = window.end) {
    window.end = std::min(numel, window.begin + checkpoint::kWeightPiece);
    piece(window, std::span(memory).first(size_t(window.size())));
  }
}

Tensor tensor_of(std::span<float> memory) {
  return Tensor(memory.data(), DType::fp32, {int64_t(memory.size())}, MemoryKind::host);
}

void read_from(const checkpoint::TensorFile& file, const checkpoint::Record& r) {
  const Elements whole{{0, checkpoint::numel_of(r.shape)}};
  in_pieces(r.elements.numel(), [&](Range window, std::span<float> memory) {
    each_overlap(r.elements, window, whole, [&](int64_t at, int64_t from, int64_t n) {
      file.read(r.tensor, from * int64_t(sizeof(float)),
                std::as_writable_bytes(memory.subspan(size_t(at - window.begin), size_t(n))));
    });
    r.write(window, tensor_of(memory));
  });
}

// Reduces a shape to at most four dims, as engine parameters have.
std::vector<int64_t> in_four_dims(std::vector<int64_t> shape) {
  if (shape.empty()) return {1};
  for (; shape.size() > 4; shape.pop_back()) shape[shape.size() - 2] *= shape.back();
  return shape;
}

}  // namespace

Restored restored_from(const checkpoint::DeepSpeedCheckpoint& saved) {
  Restored restored;
  const int64_t applied = saved.steps() - saved.skipped();
  restored.at = {.step = saved.steps(), .applied = applied, .skipped = saved.skipped()};
  restored.at.optimizer_begin = applied - (saved.kinds().size() > 1 ? saved.optimizer_steps() : 0);
  require(restored.at.optimizer_begin >= 0, Exit::checkpoint,
          "{}: its optimizer took {} steps, and the training {}", saved.path().string(),
          saved.optimizer_steps(), applied);
  if (const auto& scale = saved.loss_scale())
    restored.scaler = {scale->scale, scale->iteration, scale->last_overflow,
                       scale->moves ? scale->hysteresis : 0};
  restored.client = "{}";
  restored.imported = true;
  return restored;
}

SavedTraining::SavedTraining(const fs::path& dir, const std::string& tag) {
  if (is_of_deepspeed(dir, tag))
    open_deepspeed(dir, tag);
  else
    open_own(dir, tag);
}
SavedTraining::~SavedTraining() = default;
SavedTraining::SavedTraining(SavedTraining&&) noexcept = default;

void SavedTraining::open_own(const fs::path& dir, const std::string& tag) {
  own_ = std::make_unique<checkpoint::CheckpointReader>(dir, tag);
  state_ = from_json(own_->state(), path().string());
  for (const auto& [name, whole] : own_->manifest().tensors)
    tables_[name.first][name.second] = {name.second, false, whole.shape};
}

void SavedTraining::open_deepspeed(const fs::path& dir, const std::string& tag) {
  deepspeed_ = std::make_unique<checkpoint::DeepSpeedCheckpoint>(dir, tag);
  for (const std::string& kind : deepspeed_->kinds()) {
    files_[kind] = deepspeed_->tensors(kind);
    for (const auto& [name, shape] : deepspeed_->shapes()) tables_[kind][name] = {name, false, shape};
  }
  state_ = restored_from(*deepspeed_);
}

const fs::path& SavedTraining::path() const { return own_ ? own_->path() : deepspeed_->path(); }

bool SavedTraining::of_the_trainer() const {
  const json client = json::parse(state_.client, nullptr, false);
  return own_ && client.is_object() && client.contains("model");
}

model::ModelConfig SavedTraining::model() const {
  const json client = json::parse(state_.client);
  require(client.contains("config") && client.contains("vocab") && client["vocab"].is_number_integer(),
          Exit::checkpoint, "{}: contains no model config, because an older cleave train wrote it",
          path().string());
  model::ModelConfig config = model::read_config_json(client["config"].dump(), path().string());
  config.vocab = client["vocab"];
  return config;
}

void SavedTraining::call(const Table& names) {
  for (auto& [kind, table] : tables_) {
    Table renamed;
    for (const auto& [name, stored] : names) {
      const auto at = table.find(stored.name);
      if (at == table.end()) continue;
      std::vector<int64_t> shape = at->second.shape;
      if (stored.transposed) std::reverse(shape.begin(), shape.end());
      renamed[name] = {stored.name, stored.transposed, std::move(shape)};
      table.erase(at);
    }
    renamed.merge(table);  // entries without another name keep theirs
    table = std::move(renamed);
  }
}

void SavedTraining::as_published() {
  if (!of_the_trainer()) return;
  const checkpoint::WeightNames names = weight_names(model());
  Table published;
  std::map<std::string, std::string> by_own;
  for (const checkpoint::WeightName& w : names.tensors) {
    published[w.file_name] = {w.tensor, w.transposed};
    by_own[w.tensor] = w.file_name;
  }
  call(published);
  for (const auto& [other, tensor] : names.tied) tied_.emplace_back(other, by_own.at(tensor));
}

void SavedTraining::as_layers_of(const model::ModelConfig& config) {
  if (of_the_trainer()) return;
  std::vector<std::string> stored;
  for (const auto& [name, tensor] : tensors("master")) stored.push_back(name);
  Table layers;
  for (const checkpoint::WeightName& w : weight_names(config, stored).tensors)
    layers[w.tensor] = {w.file_name, w.transposed};
  call(layers);
}

std::vector<std::string> SavedTraining::kinds() const {
  std::vector<std::string> kinds;
  for (const auto& [kind, table] : tables_) kinds.push_back(kind);
  return kinds;
}

const std::map<std::string, SavedTraining::Stored>& SavedTraining::tensors(const std::string& kind) const {
  const auto at = tables_.find(kind);
  require(at != tables_.end(), Exit::checkpoint, "{}: contains no {} (it has {})", path().string(), kind,
          fmt::join(kinds(), ", "));
  return at->second;
}

bool SavedTraining::has(const std::string& kind, const std::string& tensor) const {
  const auto at = tables_.find(kind);
  return at != tables_.end() && at->second.contains(tensor);
}

// Lists a few missing names and a few unused names.
void SavedTraining::refuse_names(std::span<const Record> records, const Record& first) const {
  constexpr size_t kShown = 3;
  std::vector<std::string> missing, unknown;
  for (const Record& r : records)
    if (r.kind == first.kind && !has(r.kind, r.tensor) &&
        std::count(missing.begin(), missing.end(), r.tensor) == 0)
      missing.push_back(r.tensor);
  if (const auto table = tables_.find(first.kind); table != tables_.end())
    for (const auto& [name, stored] : table->second)
      if (std::none_of(records.begin(), records.end(), [&](const Record& r) { return r.tensor == name; }))
        unknown.push_back(name);
  const auto some = [&](std::vector<std::string> names) {
    const size_t more = names.size() - std::min(names.size(), kShown);
    names.resize(names.size() - more);
    return fmt::format("{}{}", printable(fmt::format("{}", fmt::join(names, ", "))),
                       more ? fmt::format(" and {} more", more) : "");
  };
  fail(Exit::checkpoint,
       "{}: missing: {} of {}{}; another model or optimizer wrote this checkpoint, or the parameter was "
       "frozen; "
       "parameters are matched by name{}",
       path().string(), first.kind, some(missing), unknown.empty() ? "" : "; extra: " + some(unknown),
       first.kind == "master" ? ""
                              : ". --reset_optimizer (load_optimizer_states=False) takes the weights alone");
}

void SavedTraining::require_stored(std::span<const Record> records) const {
  for (const Record& r : records) {
    if (!has(r.kind, r.tensor)) refuse_names(records, r);
    const std::vector<int64_t>& shape = tensors(r.kind).at(r.tensor).shape;
    require(shape == r.shape || in_four_dims(shape) == r.shape, Exit::checkpoint,
            "{}: {} of {} has the wrong shape (got [{}], expected [{}]){}", path().string(), r.kind, r.tensor,
            fmt::join(shape, ", "), fmt::join(r.shape, ", "),
            r.kind == "layer_state"
                ? "; resume with the configuration of the saved training (for FP8, cleave.fp8.history)"
            : r.tensor.find(".lora_") != std::string::npos
                ? "; resume with the cleave.lora.rank of the saved training"
                : "");
  }
}

void SavedTraining::read(std::span<const Record> records) const {
  require_stored(records);
  std::vector<Record> plain;
  for (const Record& r : records)
    if (const Stored& stored = tensors(r.kind).at(r.tensor); !stored.transposed)
      plain.emplace_back(r).tensor = stored.name;
  read_plain(plain);
  for (const Record& r : records)
    if (const Stored& stored = tensors(r.kind).at(r.tensor); stored.transposed) read_transposed(r, stored);
}

void SavedTraining::read_whole(const std::string& kind, const std::string& tensor,
                               std::span<float> to) const {
  require(has(kind, tensor), Exit::checkpoint, "{}: {} of {} is missing", path().string(), kind, tensor);
  const std::vector<int64_t>& shape = tensors(kind).at(tensor).shape;
  const int64_t numel = checkpoint::numel_of(shape);
  CHECK(int64_t(to.size()) == numel, "{} has {} elements, got {}", tensor, numel, to.size());
  const Record whole{kind,
                     tensor,
                     shape,
                     {{0, numel}},
                     {},
                     [&](Range at, Tensor from) {
                       std::copy_n(from.as<float>(), from.numel(), to.data() + at.begin); }};
  read({&whole, 1});
}

void SavedTraining::read_bytes(const std::string& tensor, std::span<std::byte> to) const {
  constexpr auto kWord = int64_t(sizeof(int64_t));
  require(has("bytes", tensor), Exit::checkpoint, "{}: {} is missing", path().string(), tensor);
  const std::vector<int64_t>& shape = tensors("bytes").at(tensor).shape;
  const int64_t words = checkpoint::numel_of(shape), size = int64_t(to.size());
  require(words == ceil_div(size, kWord), Exit::checkpoint,
          "{}: {} has the wrong size (got {} bytes, expected {})", path().string(), tensor, words * kWord,
          round_up(size, kWord));
  const Record whole{.kind = "bytes",
                     .tensor = tensor,
                     .shape = shape,
                     .elements = {{0, words}},
                     .write =
                         [&](Range at, Tensor from) {
                           const int64_t begin = at.begin * kWord, end = std::min(size, at.end * kWord);
                           std::memcpy(to.data() + begin, from.raw(), size_t(end - begin));
                         },
                     .dtype = DType::int64};
  read({&whole, 1});
}

void SavedTraining::read_plain(std::span<const Record> records) const {
  if (own_) return own_->read(records);
  for (const Record& r : records) read_from(*files_.at(r.kind), r);
}

// Reads the whole matrix to memory and transposes it.
void SavedTraining::read_transposed(const Record& record, const Stored& stored) const {
  const int64_t rows = record.shape[0], columns = record.shape[1];
  const Elements all{{0, rows * columns}};
  std::vector<float> whole(size_t(rows * columns));
  const Record lying{record.kind, stored.name, {columns, rows}, all, {}, [&](Range at, Tensor from) {
                       std::copy_n(from.as<float>(), from.numel(), whole.data() + at.begin);
                     }};
  read_plain({&lying, 1});
  in_pieces(record.elements.numel(), [&](Range window, std::span<float> memory) {
    each_overlap(record.elements, window, all, [&](int64_t at, int64_t from, int64_t n) {
      for (int64_t i = 0; i < n; ++i)
        memory[size_t(at - window.begin + i)] =
            whole[size_t((from + i) % columns * rows + (from + i) / columns)];
    });
    record.write(window, tensor_of(memory));
  });
}

}  // namespace cleave::runtime
