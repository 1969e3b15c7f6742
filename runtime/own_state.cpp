// State of one rank without the others: EngineBase::save_own_state and its counterparts.
#include "checkpoint/checksum.h"
#include "comm/communicator.h"
#include "runtime/engine_base.h"
#include "runtime/replay/step_record.h"
#include "runtime/step/engine_core.h"
#include "runtime/step/state_records.h"

namespace cleave::runtime {
namespace {

// Returns the elements that a rank holds, each record as a whole tensor of its own.
std::vector<checkpoint::Record> own_records(EngineCore& s) {
  std::vector<checkpoint::Record> records = records_to_load(*s.rank, s.streams->compute);
  for (checkpoint::Record& r : s.computes->records(Computation::Whose::held)) records.push_back(std::move(r));
  std::map<std::pair<std::string, std::string>, int> seen;
  for (checkpoint::Record& r : records) {
    if (const int before = seen[{r.kind, r.tensor}]++; before > 0) r.tensor += fmt::format("#{}", before);
    r.shape = {r.elements.numel()}, r.elements = {{0, r.shape[0]}};
  }
  std::erase_if(records, [](const checkpoint::Record& r) { return r.elements.numel() == 0; });
  return records;
}

// Calls piece(range, host memory) for the elements of a record.
void in_pieces(const checkpoint::Record& r, const std::function<void(Tensor)>& piece) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<std::byte> memory(size_t(std::min(kPiece, r.elements.numel()) * size_of(r.dtype)));
  for (int64_t at = 0; at < r.elements.numel(); at += kPiece) {
    const int64_t n = std::min(kPiece, r.elements.numel() - at);
    const Tensor here(memory.data(), r.dtype, {n}, MemoryKind::host);
    r.read({at, at + n}, here);
    piece(here);
  }
}

}  // namespace

void EngineBase::save_own_state(const std::string& dir, const std::string& tag) {
  EngineCore& s = core();
  synchronize();
  checkpoint::save_checkpoint(dir, tag, own_records(s),
                              to_json(s.own_position(), s.scaler.state(), s.options.seed, "{}"),
                              *comm::self_communicator());
}

void EngineBase::load_own_state(const std::string& dir, const std::string& tag) {
  EngineCore& s = core();
  const checkpoint::CheckpointReader reader(dir, tag);
  const Restored restored = from_json(reader.state(), reader.path().string());
  std::vector<checkpoint::Record> records = own_records(s);
  for (checkpoint::Record& r : records) r.may_be_missing = false;
  reader.read(records);
  s.set_position(restored.at);
  s.options.seed = restored.seed;
  if (s.settings.scales_loss && restored.scaler) s.scaler.restore(*restored.scaler);
}

std::vector<StateSum> EngineBase::own_state_sums() {
  synchronize();
  std::vector<StateSum> sums;
  for (const checkpoint::Record& r : own_records(core())) {
    checkpoint::Checksum sum;
    in_pieces(r, [&](const Tensor& piece) { sum.add(piece.raw(), piece.bytes()); });
    sums.push_back({r.kind, r.tensor, sum.value()});
  }
  return sums;
}

int64_t EngineBase::own_state_bytes() const {
  int64_t sum = 0;
  for (const checkpoint::Record& r : own_records(core())) sum += r.bytes();
  return sum;
}

}  // namespace cleave::runtime
