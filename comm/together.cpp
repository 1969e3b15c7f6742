#include "comm/together.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "comm/from_peer.h"
#include "core/philox.h"
#include "core/printable.h"

namespace cleave::comm {
namespace {

// Result of one rank in a form that ranks can send.
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

constexpr size_t kShown = 8;      // differing facts; a rank sends one more to signal that there are others
constexpr size_t kLongest = 100;  // bytes of a name or value
constexpr std::string_view kNotSet = "not set";

Tensor bytes_of(void* data, size_t bytes) { return {data, DType::uint8, {int64_t(bytes)}, MemoryKind::host}; }

std::string packed(const Facts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += name + '\0' + value + '\0';
  return text;
}

Facts unpacked(std::string_view text) {
  Facts facts;
  const auto next = [&text] {
    const size_t end = std::min(text.find('\0'), text.size());  // a truncated text has no terminating 0
    const std::string word(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    return word;
  };
  while (!text.empty() && text[0] != '\0') {
    std::string name = next();
    facts.emplace_back(std::move(name), next());
  }
  return facts;
}

bool all_same(Communicator& world, std::string_view text) {
  const uint64_t digest = hash_name(text);
  const auto low = double(uint32_t(digest)), high = double(digest >> 32);
  double most[] = {low, high, -low, -high};
  Stream stream;
  world.all_reduce(Tensor(most, DType::fp64, {4}, MemoryKind::host), stream,
                   {.what = "comparing the inputs of the ranks", .by = Reduction::max});
  stream.synchronize();
  return most[0] == -most[2] && most[1] == -most[3];
}

Facts facts_of_first(Communicator& world, std::string text) {
  int64_t bytes = int64_t(text.size());
  Stream stream;
  const Call call{.what = "the inputs of rank 0"};
  world.broadcast(Tensor(&bytes, DType::int64, {1}, MemoryKind::host), 0, stream, call);
  stream.synchronize();
  text.resize(length_from_peer(bytes, "the inputs of rank 0"));
  world.broadcast(bytes_of(text.data(), text.size()), 0, stream, call);
  stream.synchronize();
  return unpacked(text);
}

// Value of a named fact; null if missing.
const std::string* value_in(const Facts& facts, const std::string& name) {
  const auto at = std::ranges::find(facts, name, &Facts::value_type::first);
  return at == facts.end() ? nullptr : &at->second;
}

// Shortens a name or value to at most kLongest bytes; different texts remain different.
std::string shown(const std::string& text) {
  if (text.size() <= kLongest) return text;
  return fmt::format("{}... (digest {:016x})", text.substr(0, kLongest - 32), hash_name(text));
}

// First facts of a rank that differ from rank 0's, with this rank's values.
Facts differences(const Facts& mine, const Facts& first) {
  Facts found;
  const auto add = [&](const std::string& name, const std::string& value) {
    if (found.size() <= kShown) found.emplace_back(shown(name), shown(value));
  };
  for (const auto& [name, value] : first) {
    const std::string* own = value_in(mine, name);
    if (!own) add(name, std::string(kNotSet));
    if (own && *own != value) add(name, *own);
  }
  for (const auto& [name, value] : mine)
    if (!value_in(first, name)) add(name, value);
  return found;
}

// "rank 0", "ranks 1, 4 to 7".
std::string listed(const std::vector<size_t>& ranks) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < ranks.size();) {
    size_t end = at + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    parts.push_back(end - at > 1 ? fmt::format("{} to {}", ranks[at], ranks[end - 1])
                                 : std::to_string(ranks[at]));
    at = end;
  }
  if (parts.size() > kShown) parts.resize(kShown), parts.emplace_back("...");
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(parts, ", "));
}

// "--seed: ranks differ (rank 0: 42, rank 1: 43)". `of_ranks` are their differences from rank 0.
std::string sentence(const std::string& name, const Facts& first, const std::vector<Facts>& of_ranks) {
  const std::string* common = value_in(first, name);
  std::vector<std::pair<std::string, std::vector<size_t>>> values;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const std::string* own = value_in(of_ranks[rank], shown(name));
    const std::string value = own ? *own : common ? shown(*common) : std::string(kNotSet);
    auto at = std::ranges::find(values, value, [](const auto& v) { return v.first; });
    if (at == values.end()) at = values.insert(at, {value, {}});
    at->second.push_back(rank);
  }
  std::vector<std::string> parts;
  for (const auto& [value, ranks] : values)
    parts.push_back(
        fmt::format("{}: {}", listed(ranks), value.empty() ? std::string(kNotSet) : printable(value)));
  if (parts.size() > kShown) parts.resize(kShown), parts.emplace_back("...");
  return fmt::format("{}: ranks differ ({})", printable(name), fmt::join(parts, ", "));
}

}  // namespace

std::string differences_of_ranks(Communicator& world, const Facts& mine) {
  const std::string text = packed(mine);
  if (world.size() == 1 || all_same(world, text)) return {};
  const Facts first = facts_of_first(world, text);
  using Record = std::array<char, (kShown + 1) * 2 * (kLongest + 1) + 1>;  // terminated by a 0
  Record own{};
  std::ranges::copy(packed(differences(mine, first)), own.begin());
  std::vector<Record> records(size_t(world.size()));
  Stream stream;
  world.all_gather(bytes_of(records.data(), records.size() * sizeof(Record)),
                   bytes_of(own.data(), own.size()), stream, {.what = "the inputs that differ"});
  stream.synchronize();
  std::vector<Facts> of_ranks;
  Facts names;  // in the order of rank 0, then others
  for (const Record& record : records) of_ranks.push_back(unpacked({record.data(), record.size()}));
  const auto differs = [&](const std::string& name) {
    return std::ranges::any_of(of_ranks, [&](const Facts& f) { return value_in(f, name); });
  };
  for (const auto& fact : first)
    if (differs(shown(fact.first))) names.push_back(fact);
  for (const Facts& facts : of_ranks)
    for (const auto& fact : facts)
      if (!value_in(first, fact.first) && !value_in(names, fact.first)) names.push_back(fact);
  std::string all;
  for (size_t n = 0; n < std::min(names.size(), kShown); ++n)
    all += sentence(names[n].first, first, of_ranks) + "; ";
  return all + (names.size() > kShown ? "and others; " : "");
}

void require_alike(Communicator& world, const Facts& mine) {
  const std::string differences = differences_of_ranks(world, mine);
  if (!differences.empty())
    throw RanksDiffer(Exit::usage, differences + "start all ranks with the same command");
}

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
  const std::string text = text_from_peer(first->text);
  throw AgreedError(Exit(first->exit), rank == world.rank() ? text : fmt::format("rank {}: {}", rank, text));
}

}  // namespace cleave::comm
