#include "runtime/step/save_weights.h"

#include <exception>
#include <map>

#include "checkpoint/removal.h"
#include "comm/together.h"
#include "runtime/step/state_records.h"

namespace cleave::runtime {
namespace fs = std::filesystem;
namespace {

// Request of the first rank to all: elements of a parameter, or end.
struct Wanted {
  int64_t tensor = -1;  // index in the names
  checkpoint::Elements elements = {};
  Range window = {};  // of the elements, numbered among themselves
};
constexpr int64_t kWords = 7;

class Gathering {
 public:
  Gathering(RankState& rank, comm::Communicator& world, Stream& compute, Stream& comm,
            const checkpoint::WeightNames& names)
      : world_(world), comm_(comm), names_(names), sums_(size_t(ceil_div(checkpoint::kWeightPiece, 2))) {
    for (size_t i = 0; i < names.tensors.size(); ++i) places_[names.tensors[i].tensor] = int64_t(i);
    for (checkpoint::Record& r : records_to_save(rank, compute))
      if (r.kind == "master") records_[r.tensor].push_back(std::move(r));
  }

  // First rank: reads the record's elements from all ranks.
  void read(const checkpoint::Record& record) {
    const int64_t all = record.elements.numel();
    for (Range window{0, 0}; window.begin < all; window.begin = window.end) {
      window.end = std::min(all, window.begin + checkpoint::kWeightPiece);
      const Wanted wanted{places_.at(record.tensor), record.elements, window};
      tell(wanted);
      join(wanted);
      record.write(window, Tensor(sums_.data(), DType::fp32, {window.size()}, MemoryKind::host));
    }
  }
  void end() { tell({}); }

  // Other ranks: serve requests until the first rank is done.
  void serve() {
    for (Wanted wanted = heard(); wanted.tensor >= 0; wanted = heard()) join(wanted);
  }

  // Rethrows an error of this rank that occurred while others waited for its part.
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void tell(const Wanted& w) {
    const checkpoint::Elements& e = w.elements;
    const int64_t words[kWords] = {w.tensor, e.range.begin,  e.range.end, e.run,
                                   e.stride, w.window.begin, w.window.end};
    std::copy_n(words, kWords, words_);
    pass_on();
  }
  Wanted heard() {
    pass_on();
    return {words_[0], {{words_[1], words_[2]}, words_[3], words_[4]}, {words_[5], words_[6]}};
  }
  void pass_on() {
    world_.broadcast(Tensor(words_, DType::int64, {kWords}, MemoryKind::host), 0, comm_,
                     {.what = "which weights are written next"});
    comm_.synchronize();
  }

  // Every element is nonzero on one rank only. The values are added as integers, two at a time, to preserve
  // negative zeros.
  void join(const Wanted& wanted) {
    std::fill(sums_.begin(), sums_.end(), 0);
    auto* floats = reinterpret_cast<float*>(sums_.data());
    if (!failure_) try {
        for (const checkpoint::Record& r : records_[names_.tensors[size_t(wanted.tensor)].tensor])
          checkpoint::each_overlap(
              wanted.elements, wanted.window, r.elements, [&](int64_t at, int64_t from, int64_t n) {
                r.read({from, from + n},
                       Tensor(floats + at - wanted.window.begin, DType::fp32, {n}, MemoryKind::host));
              });
      } catch (...) {
        failure_ = std::current_exception();
      }
    world_.all_reduce(
        Tensor(sums_.data(), DType::int64, {ceil_div(wanted.window.size(), 2)}, MemoryKind::host), comm_,
        {.what = "weights that are written"});
    comm_.synchronize();
  }

  comm::Communicator& world_;
  Stream& comm_;
  const checkpoint::WeightNames& names_;
  std::map<std::string, int64_t> places_;
  std::map<std::string, std::vector<checkpoint::Record>> records_;
  std::vector<int64_t> sums_;  // fp32 values, two per element
  int64_t words_[kWords] = {};
  std::exception_ptr failure_;
};

// Replaces the weight files in `to` by the files of `from`.
void replace_weights(const fs::path& from, const fs::path& to) {
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(to))
    if (checkpoint::is_weights_file(entry.path().filename().string()) &&
        entry.symlink_status().type() != fs::file_type::directory)
      old.push_back(entry.path());
  for (const fs::path& path : old) fs::remove(path);
  for (const auto& entry : fs::directory_iterator(from))
    fs::rename(entry.path(), to / entry.path().filename());
  checkpoint::require_removed(from, checkpoint::is_weights_file);
}

}  // namespace

void save_weights(RankState& rank, comm::Communicator& world, Stream& compute, Stream& comm,
                  const fs::path& folder, const checkpoint::WeightNames& names,
                  const checkpoint::WeightFormat& format) {
  Gathering gathering(rank, world, compute, comm, names);
  const fs::path temporary = folder / ".tmp.weights";
  std::exception_ptr failure;
  if (world.rank() == 0) {
    try {
      checkpoint::require_removed(temporary, checkpoint::is_weights_file);
      fs::create_directories(temporary);
      checkpoint::write_weights(temporary, names, format,
                                [&](const checkpoint::Record& r) { gathering.read(r); });
    } catch (...) {
      failure = std::current_exception();
    }
    gathering.end();
  } else {
    gathering.serve();
  }
  // Move files only if every rank gave its part.
  std::exception_ptr agreed;
  try {
    comm::together(world, Exit::checkpoint, [&] {
      if (failure) std::rethrow_exception(failure);
      gathering.rethrow();
    });
  } catch (...) {
    agreed = std::current_exception();
  }
  comm::together(world, Exit::checkpoint, [&] {
    if (world.rank() != 0) return;
    if (!agreed) return replace_weights(temporary, folder);
    checkpoint::discard_own(temporary, checkpoint::is_weights_file);
  });
  if (agreed) std::rethrow_exception(agreed);
}

}  // namespace cleave::runtime
