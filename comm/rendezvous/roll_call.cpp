#include "comm/rendezvous/roll_call.h"

#include <fmt/core.h>

#include <algorithm>

#include "comm/rendezvous/wire.h"
#include "core/error.h"

namespace cleave::comm {
namespace {

constexpr int kRanksPerBlock = 1024;
constexpr size_t kMostText = 512;  // a block fits into a frame
static_assert(kRanksPerBlock * (kMostText + sizeof(uint32_t)) < wire::kFrameLimit);

// Neighboring ranks are often on one host, and their texts begin alike: a block has the length of the common
// beginning and the rest of each text. Rank 0 sends it to all ranks.
size_t common(const std::string& a, const std::string& b) {
  return size_t(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

std::string rank_key(int rank) { return fmt::format("process/{}", rank); }
std::string block_key(int first) { return fmt::format("processes/{}", first); }

}  // namespace

std::vector<std::string> roll_call(const Store& store, int rank, int world, const std::string& own) {
  require(own.size() <= kMostText, Exit::internal, "rank {}: its description has {} bytes (at most {})", rank,
          own.size(), kMostText);
  if (rank > 0) store.set(rank_key(rank), own);
  std::vector<std::string> texts;
  for (int first = 0; first < world; first += kRanksPerBlock) {
    const int end = std::min(world, first + kRanksPerBlock);
    if (rank == 0) {
      wire::Writer block(wire::Type::value);
      for (int r = first; r < end; ++r) {
        texts.push_back(r == 0 ? own : store.await(rank_key(r)));
        const size_t same = r == first ? 0 : common(texts[size_t(r) - 1], texts.back());
        block.put(uint16_t(same)).put(std::string_view(texts.back()).substr(same));
      }
      store.set(block_key(first), block.text());
      continue;
    }
    const std::string bytes = store.await(block_key(first));
    wire::Reader block(bytes);
    block.number<uint8_t>();
    for (int r = first; r < end; ++r) {
      const size_t same = block.number<uint16_t>();
      texts.push_back((r == first ? "" : texts.back().substr(0, same)) + block.text());
    }
    require(block.good(), Exit::internal, "rank {}: the list of ranks {} to {} is incomplete", rank, first,
            end - 1);
  }
  return texts;
}

}  // namespace cleave::comm
