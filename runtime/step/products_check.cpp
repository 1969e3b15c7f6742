#include "runtime/step/products_check.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/matmul_ways.h"

namespace cleave::runtime {
namespace {

int64_t number_of(const std::string& text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ uint8_t(c)) * 0x100000001b3;
  return int64_t(hash);
}

// "ranks 0, 1 (fp32: ...) and ranks 2, 3 (fp32: ...)".
std::string list_ways(const std::vector<std::string>& ways) {
  constexpr size_t kMost = 8;
  std::vector<std::string> seen, parts;
  for (const std::string& way : ways) {
    if (std::ranges::find(seen, way) != seen.end()) continue;
    seen.push_back(way);
    std::vector<size_t> those;
    for (size_t rank = 0; rank < ways.size(); ++rank)
      if (ways[rank] == way) those.push_back(rank);
    const size_t shown = std::min(those.size(), kMost);
    parts.push_back(fmt::format("rank{} {}{} ({})", those.size() > 1 ? "s" : "",
                                fmt::join(those.begin(), those.begin() + int64_t(shown), ", "),
                                shown < those.size() ? ", ..." : "", way));
  }
  return fmt::format("{}", fmt::join(parts, " and "));
}

}  // namespace

void check_products(const Settings& settings, Ranks& ranks) {
  comm::Communicator& world = ranks.world();
  if (settings.device.is_cuda() || world.size() == 1) return;
  const std::string mine = kernels::describe_matmul_ways();
  std::vector<int64_t> numbers(size_t(world.size()), 0);
  numbers[size_t(world.rank())] = number_of(mine);
  ranks.all_reduce_on_host(Tensor(numbers.data(), DType::int64, {world.size()}, MemoryKind::host),
                           "the ways of products");
  if (std::ranges::count(numbers, numbers[0]) == world.size()) return;
  const std::vector<std::string> ways = ranks.texts(world, mine);
  const bool all_have_avx512 =
      std::ranges::all_of(ways, [](const std::string& way) { return way.find("AVX2") == std::string::npos; });
  fail(Exit::usage,
       "CPUs: the ranks compute matrix products in different ways, so equal values would drift apart: {}; "
       "set {} for every rank, or use equal machines",
       list_ways(ways),
       all_have_avx512 ? "ONEDNN_MAX_CPU_ISA=AVX512_CORE" : "CLEAVE_ISA=v3 and ONEDNN_MAX_CPU_ISA=AVX2");
}

}  // namespace cleave::runtime
