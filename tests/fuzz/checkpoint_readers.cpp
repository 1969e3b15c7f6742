#include "tests/fuzz/checkpoint_readers.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "app/adapters.h"
#include "checkpoint/checksum.h"
#include "checkpoint/deepspeed_checkpoint.h"
#include "checkpoint/digest.h"
#include "checkpoint/torch_file.h"
#include "core/json.h"
#include "runtime/step/training_state.h"
#include "tests/fuzz/changed_file.h"

namespace cleave {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

template <class T>
T at(const std::string& bytes, size_t place) {
  T value;
  CHECK(place + sizeof value <= bytes.size(), "{} of {} bytes", place, bytes.size());
  std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}
template <class T>
void put(std::string& bytes, size_t place, T value) {
  std::memcpy(bytes.data() + place, &value, sizeof value);
}

// A torch.save file with a replaced pickle, which is its first entry.
class TorchTemplate {
 public:
  explicit TorchTemplate(std::string file) : file_(std::move(file)) {
    const size_t end = file_.size() - 22;
    CHECK(at<uint32_t>(file_, end) == 0x06054b50, "a comment");
    directory_ = at<uint32_t>(file_, end + 16);
  }
  std::string pickle() const {
    const size_t begin = size_t{30} + at<uint16_t>(file_, 26) + at<uint16_t>(file_, 28);
    return file_.substr(begin, at<uint32_t>(file_, directory_ + 24));
  }
  std::string with(const std::string& pickle) const {
    const std::string name = file_.substr(30, at<uint16_t>(file_, 26));
    std::string entry = file_.substr(0, 30) + name;
    // Without the ZIP64 records, which have the same numbers.
    const size_t end = file_.size() - 22;
    std::string table = file_.substr(directory_, at<uint32_t>(file_, end + 12)) + file_.substr(end);
    put(entry, 28, uint16_t{0});
    put(table, 20, uint32_t(pickle.size())), put(table, 24, uint32_t(pickle.size()));
    put(table, 42, uint32_t(directory_));
    put(table, table.size() - 6, uint32_t(directory_ + entry.size() + pickle.size()));
    return file_.substr(0, directory_) + entry + pickle + table;
  }

 private:
  std::string file_;
  size_t directory_;
};

// A file in the folder that DeepSpeed wrote.
struct DeepSpeedFile {
  ChangedFile changed;
  TorchTemplate original;
};
const std::vector<DeepSpeedFile>& deepspeed_files() {
  static const std::vector<DeepSpeedFile> files = [] {
    std::vector<DeepSpeedFile> all;
    for (const char* name : {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt",
                             "zero_pp_rank_1_mp_rank_00_optim_states.pt"})
      all.push_back({ChangedFile(std::string("deepspeed/global_step3/") + name),
                     TorchTemplate(fixture(std::string("deepspeed/zero1_fp16/global_step3/") + name))});
    return all;
  }();
  return files;
}

template <class Each>
void read_ends(const checkpoint::TensorFile& file, Each&& read) {
  for (const auto& [name, tensor] : file.tensors()) {
    const int64_t size = tensor.end - tensor.begin, some = std::min<int64_t>(16, size / 4 * 4);
    std::vector<std::byte> bytes(static_cast<size_t>(some));
    read(name, 0, bytes), read(name, size - some, bytes);
  }
}

// A checkpoint of one linear layer [3, 4] with an adapter of rank 2. The shard also has tensors of
// ones with other numbers of elements, so that changed manifests find the tensors that they name.
class AdapterCheckpoint {
 public:
  AdapterCheckpoint() : manifest_("adapters/a/manifest.json") {
    std::vector<float> ones(kMost, 1);
    std::vector<checkpoint::NamedTensor> tensors;
    for (const char* tensor : kTensors)
      for (int64_t n = 1; n <= kMost; ++n)
        tensors.push_back({checkpoint::name_in_shard({"master", tensor}, {{0, n}}),
                           {n},
                           Tensor(ones.data(), DType::fp32, {n}, MemoryKind::host)});
    const fs::path shard = fs::path(manifest_.path()).parent_path() / "a.safetensors";
    const checkpoint::WrittenFile written = checkpoint::write_safetensors(shard, tensors);
    shard_ = {written.bytes, checkpoint::checksum_of(written.header)};
  }
  fs::path folder() const { return fs::path(manifest_.path()).parent_path().parent_path(); }
  void write(const std::string& text) const { manifest_.write(text); }

  std::string good() const {
    const json client = {{"lora", {{"targets", {"h"}}, {"rank", 2}, {"alpha", 4.0}, {"use_rslora", false}}}};
    checkpoint::Manifest m;
    m.state = runtime::to_json({}, std::nullopt, client.dump());
    m.shards["a.safetensors"] = shard_;
    for (const auto& [tensor, shape] : {std::pair<const char*, std::vector<int64_t>>{kTensors[0], {3, 4}},
                                        {kTensors[1], {2, 4}},
                                        {kTensors[2], {3, 2}}}) {
      const int64_t numel = shape[0] * shape[1];
      m.tensors[{"master", tensor}] = {
          shape, DType::fp32, {{"a.safetensors", {{0, numel}}, {sum_of(numel)}}}};
    }
    return m.text();
  }

  // Returns the manifest that a writer of these records would write.
  static std::string corrected(const std::string& text) {
    json m = json::parse(text, nullptr, false);
    if (!m.is_object() || !m.contains("records") || !m["records"].is_array()) return text;
    for (json& r : m["records"]) try {
        const int64_t begin = counted(r.at("range").at(0)), end = counted(r.at("range").at(1));
        r["name"] = checkpoint::name_in_shard({r.at("kind"), r.at("tensor")}, {{begin, end}});
        if (begin == 0 && 0 < end && end <= kMost)
          r["xxh3"] = json::array({fmt::format("{:016x}", sum_of(end))});
      } catch (const json::exception&) {  // it has no such members
      }
    return sealed(m.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
  }

 private:
  static constexpr int64_t kMost = 24;
  static constexpr const char* kTensors[] = {"h.weight", "h.lora_A.weight", "h.lora_B.weight"};
  static uint64_t sum_of(int64_t ones) {
    const std::vector<float> values(size_t(ones), 1);
    return checkpoint::checksum_of(values.data(), ones * int64_t(sizeof(float)));
  }

  ChangedFile manifest_;
  checkpoint::Manifest::Shard shard_;
};

const AdapterCheckpoint& adapter_checkpoint() {
  static const AdapterCheckpoint checkpoint;
  return checkpoint;
}

void export_adapters() {
  const checkpoint::CheckpointReader reader(adapter_checkpoint().folder(), "a");
  const std::vector<int64_t> shape = reader.shape("master", "h.weight");
  const checkpoint::WeightNames weights{.tensors = {{"h.weight", shape, "h.weight"}}};
  const auto sum = [](Range, Tensor from) {
    CHECK(std::all_of(from.as<float>(), from.as<float>() + from.numel(),
                      [](float v) { return v == 1 || v == 2; }),
          "a value that no file has");
  };
  const app::MergedWeights merged(reader, 0.5);
  if (!shape.empty()) merged.read({"master", "h.weight", shape, {{0, checkpoint::numel_of(shape)}}, {}, sum});
  for (const checkpoint::WeightName& w : app::adapter_names(reader, weights).tensors)
    reader.read({"master", w.tensor, w.shape, {{0, checkpoint::numel_of(w.shape)}}, {}, sum});
  reader.faults(1);
  checkpoint::digests(reader, 1, DType::bf16);
}

}  // namespace

bool read_torch(const std::string& bytes) {
  static const ChangedFile file("a.pt");
  file.write(bytes);
  return reads(Exit::checkpoint, [] {
    const checkpoint::TorchFile read(file.path());
    read_ends(read, [&](const std::string& name, int64_t begin, std::span<std::byte> some) {
      read.read(name, begin, some);
    });
  });
}

std::vector<std::string> torch_seeds() { return {fixture("published/llama_torch/pytorch_model.bin")}; }

bool read_deepspeed(const std::string& bytes) {
  size_t place = 0;
  for (const DeepSpeedFile& file : deepspeed_files()) {
    uint32_t size = 0;
    const size_t left = bytes.size() - place;
    if (left >= sizeof size) std::memcpy(&size, bytes.data() + place, sizeof size), place += sizeof size;
    size = uint32_t(std::min<size_t>(size, bytes.size() - place));
    file.changed.write(file.original.with(bytes.substr(place, size)));
    place += size;
  }
  const fs::path folder = fs::path(deepspeed_files()[0].changed.path()).parent_path();
  return reads(Exit::checkpoint, [&] {
    const checkpoint::DeepSpeedCheckpoint checkpoint(folder.parent_path(), "global_step3");
    for (const std::string& kind : checkpoint.kinds()) {
      const auto tensors = checkpoint.tensors(kind);
      read_ends(*tensors, [&](const std::string& name, int64_t begin, std::span<std::byte> some) {
        tensors->read(name, begin, some);
      });
    }
  });
}

std::vector<std::string> deepspeed_seeds() {
  std::string all;
  for (const DeepSpeedFile& file : deepspeed_files()) {
    const std::string pickle = file.original.pickle();
    std::string size(sizeof(uint32_t), '\0');
    put(size, 0, uint32_t(pickle.size()));
    all += size + pickle;
  }
  return {all};
}

bool read_adapters(const std::string& bytes) {
  adapter_checkpoint().write(AdapterCheckpoint::corrected(bytes));
  return reads(Exit::checkpoint, export_adapters);
}

std::vector<std::string> adapters_seeds() { return {adapter_checkpoint().good()}; }

std::string sealed(std::string text) {
  constexpr size_t kDigits = 16, kBehind = 4;
  if (text.size() < kDigits + kBehind) return text;
  const size_t at = text.size() - kBehind - kDigits;
  text.replace(at, kDigits, kDigits, '0');
  return text.replace(at, kDigits, fmt::format("{:016x}", checkpoint::checksum_of(text)));
}

}  // namespace cleave
