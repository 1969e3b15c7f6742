#include "comm/together.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

namespace cleave::comm {
namespace {

// How one rank fared, in a form that ranks can send.
struct Outcome {
  int32_t exit = 0;
  char text[2044] = {};
};

Outcome outcome_of(Exit otherwise, const std::function<void()>& body) {
  Outcome mine;
  std::string text;
  try {
    body();
    return mine;
  } catch (const Error& e) {
    mine.exit = int(e.exit()), text = e.what();
  } catch (const std::bad_alloc&) {
    mine.exit = int(Exit::memory), text = "out of host memory";
  } catch (const std::exception& e) {
    mine.exit = int(otherwise), text = e.what();
  }
  std::memcpy(mine.text, text.data(), std::min(text.size(), sizeof mine.text - 1));
  return mine;
}

}  // namespace

void together(Communicator& world, Exit otherwise, const std::function<void()>& body) {
  Outcome mine = outcome_of(otherwise, body);
  Stream stream;
  double failed = mine.exit != 0 ? 1 : 0;
  world.all_reduce(Tensor(&failed, DType::fp64, {1}, MemoryKind::host), stream, {.what = "agreement"});
  stream.synchronize();
  if (failed == 0) return;
  std::vector<Outcome> all(size_t(world.size()));
  const auto bytes = int64_t(sizeof(Outcome));
  world.all_gather(Tensor(all.data(), DType::uint8, {bytes * world.size()}, MemoryKind::host),
                   Tensor(&mine, DType::uint8, {bytes}, MemoryKind::host), stream, {.what = "agreement"});
  stream.synchronize();
  const auto first = std::find_if(all.begin(), all.end(), [](const Outcome& o) { return o.exit != 0; });
  const int rank = int(first - all.begin());
  throw AgreedError(Exit(first->exit), rank == world.rank() ? std::string(first->text)
                                                            : fmt::format("rank {}: {}", rank, first->text));
}

}  // namespace cleave::comm
