#include "checkpoint/background_save.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "comm/together.h"

namespace cleave::checkpoint {
namespace {

// Offset of a record that follows `at` bytes.
int64_t aligned(int64_t at, const Record& r) { return round_up(at, size_of(r.dtype)); }

constexpr int64_t kPiece = int64_t{1} << 21;  // elements per Record::read()

// Gives this thread, and threads that it starts, the lowest CPU priority.
void yield_to_training() { setpriority(PRIO_PROCESS, id_t(gettid()), 19); }

}  // namespace

BackgroundSave::BackgroundSave(Tensor copy, comm::Communicator& world)
    : copy_(copy),
      group_(world.duplicate("checkpoint")),
      exceptions_(std::uncaught_exceptions()),
      writer_(Stream::Mode::worker, yield_to_training) {
  CHECK(copy_.dtype() == DType::uint8, "the copy of a save is bytes, not {}", name_of(copy_.dtype()));
  // Touches all pages, so that the first save does not wait for the system to provide them.
  std::memset(copy_.raw(), 0, size_t(copy_.bytes()));
}

BackgroundSave::~BackgroundSave() {
  if (std::uncaught_exceptions() == exceptions_) return;
  given_up_ = true;
  group_->abort(
      fmt::format("rank {} gives up its unfinished checkpoint because of an error", group_->rank()));
}

int64_t BackgroundSave::bytes_of(const std::vector<Record>& records) {
  int64_t at = 0;
  for (const Record& r : records) at = aligned(at, r) + r.bytes();
  return at;
}

std::vector<Record> BackgroundSave::copied(const std::vector<Record>& records) {
  std::vector<Record> copies;
  int64_t at = 0;
  for (const Record& r : records) {
    const int64_t numel = r.elements.numel();
    at = aligned(at, r);
    const Tensor here(copy_.slice({at, at + r.bytes()}).raw(), r.dtype, {numel}, copy_.memory());
    at += r.bytes();
    for (Range piece{0, 0}; piece.begin < numel; piece.begin = piece.end) {
      piece.end = std::min(numel, piece.begin + kPiece);
      r.read(piece, here.slice(piece));
    }
    copies.push_back({r.kind,
                      r.tensor,
                      r.shape,
                      r.elements,
                      [this, here](Range range, Tensor to) {
                        require(!given_up_, Exit::checkpoint, "background save: the run failed");
                        std::memcpy(to.raw(), here.slice(range).raw(), size_t(to.bytes()));
                      },
                      {},
                      r.dtype});
  }
  return copies;
}

void BackgroundSave::begin(const std::filesystem::path& dir, const std::string& tag,
                           const std::vector<Record>& records, const std::string& state,
                           const Written& written) {
  finish();
  std::vector<Record> copies;
  try {
    comm::together(*group_, Exit::checkpoint, [&] { copies = copied(records); });
  } catch (const Error& e) {
    if (e.exit() != Exit::rank_lost) throw;
    throw Error(e.exit(), while_saving(dir / tag, e));
  }
  writer_.enqueue([this, dir, tag, copies = std::move(copies), state, written] {
    try {
      const SavedCheckpoint saved = save_checkpoint(dir, tag, copies, state, *group_);
      if (written) written(saved);
    } catch (...) {
      failed_ = true;
      throw;
    }
  });
}

void BackgroundSave::finish() {
  try {
    writer_.synchronize();
  } catch (...) {
    failed_ = false;
    throw;
  }
}

}  // namespace cleave::checkpoint
