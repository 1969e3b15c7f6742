// Saves and loads a whole training state (fp32 masters and two moments), compared with raw writes
// and reads of a file of the same size: checkpoint_bench FOLDER MODEL ROUNDS The values repeat a
// small block of memory, so the state may be larger than the host memory. One rank. Prints
// Markdown: the median, slowest and fastest round, and the median share of the disk speed.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checksum.h"
#include "checkpoint/direct_io.h"
#include "core/philox.h"
#include "model/presets.h"
#include "runtime/weight_names.h"

using namespace cleave;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kPiece = int64_t{4} << 20, kRing = 16;  // larger than the caches, as real states are

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A new file that bypasses the page cache, with plain system calls.
class Raw {
 public:
  Raw(fs::path path, int64_t bytes) : path_(std::move(path)), pieces_(bytes / kPiece) {
    ring_ = memory_.allocate(MemoryKind::host, Category::staging, DType::uint8, {kRing * kPiece}, "pieces");
    std::memset(ring_.tensor().raw(), 0x5a, size_t(kRing * kPiece));
  }
  ~Raw() { remove(); }
  void remove() { fs::remove(path_); }
  void write() {
    move(O_WRONLY | O_CREAT, [](int file, void* piece) { return ::write(file, piece, size_t(kPiece)); });
  }
  void read() {
    move(O_RDONLY, [](int file, void* piece) { return ::read(file, piece, size_t(kPiece)); });
  }

 private:
  void move(int flags, const std::function<ssize_t(int, void*)>& one) {
    const int file = open(path_.c_str(), flags | O_CLOEXEC, 0644);
    require(file >= 0, Exit::usage, "{} cannot be opened", path_.string());
    if (!checkpoint::bypass_page_cache(file))
      std::fprintf(stderr, "the disk's rates are those of the page cache\n");
    for (int64_t n = 0; n < pieces_; ++n) {
      const int64_t at = n % kRing * kPiece;
      require(one(file, ring_.tensor().slice({at, at + kPiece}).raw()) == kPiece, Exit::usage,
              "the disk is full?");
    }
    fsync(file);
    close(file);
  }
  fs::path path_;
  int64_t pieces_;
  Memory memory_;
  Buffer ring_;
};

struct State {
  explicit State(const std::string& model) {
    model::ModelConfig config = model::find_model(model);
    if (config.vocab == 0) config.vocab = 50257;
    int64_t most = 0;
    for (const checkpoint::WeightName& w : runtime::weight_names(config).tensors)
      most = std::max(most, checkpoint::numel_of(w.shape));
    values = memory.allocate(MemoryKind::host, Category::staging, DType::fp32, {most}, "values");
    home = memory.allocate(MemoryKind::host, Category::staging, DType::fp32, {most}, "home");
    auto* words = reinterpret_cast<uint32_t*>(values.tensor().raw());
    for (int64_t i = 0; i < most; ++i) words[i] = uint32_t(i * 2654435761u) >> 2;  // finite floats
    for (const checkpoint::WeightName& w : runtime::weight_names(config).tensors)
      for (const char* kind : {"master", "exp_avg", "exp_avg_sq"}) add(kind, w.tensor, w.shape);
  }
  void add(const std::string& kind, const std::string& tensor, const std::vector<int64_t>& shape) {
    bytes += checkpoint::numel_of(shape) * int64_t(sizeof(float));
    const Tensor from = values, to = home;
    records.push_back({kind,
                       tensor,
                       shape,
                       {{0, checkpoint::numel_of(shape)}},
                       [from](Range r, Tensor piece) {
                         std::memcpy(piece.raw(), from.slice(r).raw(), size_t(piece.bytes()));
                       },
                       [to](Range r, Tensor piece) {
                         std::memcpy(to.slice(r).raw(), piece.raw(), size_t(piece.bytes()));
                       }});
  }
  Memory memory;
  Buffer values, home;
  std::vector<checkpoint::Record> records;
  int64_t bytes = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The last argument has the seconds of the raw disk operation with the same bytes, per round.
void print_row(const char* name, int64_t bytes, std::vector<double> seconds,
               const std::vector<double>& beside = {}) {
  std::vector<double> shares;
  for (size_t i = 0; i < beside.size(); ++i) shares.push_back(100 * beside[i] / seconds[i]);
  std::sort(seconds.begin(), seconds.end());
  auto rate = [&](double s) { return double(bytes) / s / 1e9; };
  fmt::print("| {} | {:.2f} GB/s | {:.2f} to {:.2f} | {} |\n", name, rate(median(seconds)),
             rate(seconds.back()), rate(seconds.front()),
             shares.empty() ? "" : fmt::format("{:.0f} %", median(shares)));
}

}  // namespace

int main(int argc, char** argv) try {
  require(argc == 4, Exit::usage, "checkpoint_bench FOLDER MODEL ROUNDS");
  const fs::path folder = fs::path(argv[1]) / "checkpoint_bench";
  fs::create_directories(folder);
  State state(argv[2]);
  Raw raw(folder / "raw", state.bytes);
  const auto self = comm::self_communicator();
  std::map<std::string, std::vector<double>> seconds;
  const Tensor values = state.values;
  for (int round = 0; round < std::atoi(argv[3]); ++round) {
    seconds["written"].push_back(seconds_of([&] { raw.write(); }));
    seconds["saved"].push_back(
        seconds_of([&] { checkpoint::save_checkpoint(folder, "bench", state.records, "{}", *self); }));
    seconds["read"].push_back(seconds_of([&] { raw.read(); }));
    const checkpoint::CheckpointReader reader(folder, "bench");
    seconds["loaded"].push_back(seconds_of([&] { reader.read(state.records); }));
    seconds["checksum"].push_back(seconds_of([&] {
      uint64_t sum = 0;
      for (int64_t at = 0; at < values.numel(); at += checkpoint::Manifest::kBlock) {
        const Tensor block = values.slice({at, std::min(values.numel(), at + checkpoint::Manifest::kBlock)});
        sum ^= checkpoint::checksum_of(block.raw(), block.bytes());
      }
      if (sum == 1) std::puts("");
    }));
    checkpoint::remove_checkpoint(folder / "bench");
    raw.remove();
    sync();  // some disks free blocks slowly
  }
  fmt::print(
      "{}: {:.2f} GB, {} tensors\n\n| what | median | slowest to fastest | of the disk's rate "
      "|\n|---|---|---|---|\n",
      argv[2], double(state.bytes) / 1e9, state.records.size());
  print_row("disk: a new file, written and synced", state.bytes, seconds["written"]);
  print_row("saved", state.bytes, seconds["saved"], seconds["written"]);
  print_row("disk: the file read", state.bytes, seconds["read"]);
  print_row("loaded, every checksum compared", state.bytes, seconds["loaded"], seconds["read"]);
  print_row("checksums of memory, one core", values.bytes(), seconds["checksum"]);
  fs::remove_all(folder);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}
