#include "data/text/byte_pairs.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace cleave::text {
namespace {

constexpr size_t kKnown = size_t{1} << 15;  // 2 MiB, about the size of a core's private cache
constexpr size_t kFew = 48;  // a linear search is faster than a heap for at most this number of symbols

size_t mix(const std::array<uint64_t, 3>& key, size_t bytes) {
  uint64_t h = (key[0] ^ bytes) * 0x9E3779B97F4A7C15ULL;
  h = (std::rotl(h, 29) ^ key[1]) * 0xBF58476D1CE4E5B9ULL;
  h = (std::rotl(h, 31) ^ key[2]) * 0x94D049BB133111EBULL;
  return size_t(h >> 49);
}
static_assert(kKnown == size_t{1} << (64 - 49));

}  // namespace

BytePairs::Work::Work() : known_(kKnown) {}

BytePairs::BytePairs(Parts parts)
    : bytes_(parts.bytes), unknown_(parts.unknown), fuse_unknown_(parts.fuse_unknown) {
  all_bytes_ = std::none_of(bytes_.begin(), bytes_.end(), [](int32_t id) { return id == kNone; });
  const size_t size = std::bit_ceil(std::max<size_t>(parts.merges.size() * 2, 16));
  shift_ = 64 - std::countr_zero(size);
  slots_.resize(size);
  for (size_t i = 0; i < parts.merges.size(); ++i) {
    const Merge& m = parts.merges[i];
    const uint64_t pair = pair_of(m.left, m.right);
    size_t at = slot_of(pair);
    while (slots_[at].pair != Slot::kFree && slots_[at].pair != pair) at = (at + 1) & (size - 1);
    slots_[at] = {pair, int32_t(i), m.result};
  }
  for (auto& [text, id] : parts.whole) whole_.emplace(std::move(text), id);
}

const BytePairs::Slot* BytePairs::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (size_t at = slot_of(pair);; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].pair == pair) return &slots_[at];
    if (slots_[at].pair == Slot::kFree) return nullptr;
  }
}

int32_t BytePairs::rank(int32_t left, int32_t right) const {
  const Slot* slot = find(left, right);
  return slot ? slot->rank : kNoRank;
}

void BytePairs::encode(std::string_view word, Work& work, std::vector<int32_t>& out) const {
  using Known = Work::Known;
  if (word.size() > Known::kBytes) {
    merge(word, work);
    out.insert(out.end(), work.ids_.begin(), work.ids_.end());
    return;
  }
  std::array<uint64_t, 3> key{};
  std::memcpy(key.data(), word.data(), word.size());
  Known& known = work.known_[mix(key, word.size())];
  if (known.bytes == word.size() && known.key == key) [[likely]] {
    out.insert(out.end(), known.ids.begin(), known.ids.begin() + known.tokens);
    return;
  }
  merge(word, work);
  out.insert(out.end(), work.ids_.begin(), work.ids_.end());
  if (work.ids_.size() > Known::kTokens) return;
  known.key = key, known.bytes = uint8_t(word.size()), known.tokens = uint8_t(work.ids_.size());
  std::copy(work.ids_.begin(), work.ids_.end(), known.ids.begin());
}

void BytePairs::merge(std::string_view word, Work& work) const {
  work.ids_.clear();
  if (!whole_.empty())
    if (const auto found = whole_.find(word); found != whole_.end()) {
      work.ids_.push_back(found->second);
      return;
    }
  begin(word, work.ids_);
  if (work.ids_.size() < 2) return;
  work.ids_.size() <= kFew ? merge_few(work) : merge_many(work);
}

void BytePairs::begin(std::string_view word, std::vector<int32_t>& ids) const {
  if (all_bytes_) {
    ids.resize(word.size());
    for (size_t i = 0; i < word.size(); ++i) ids[i] = bytes_[static_cast<unsigned char>(word[i])];
    return;
  }
  bool in_unknown = false;
  for (const char c : word) {
    const int32_t id = bytes_[static_cast<unsigned char>(c)];
    const bool unknown = id == kNone;
    if (!unknown) ids.push_back(id);
    if (unknown && unknown_ != kNone && !(in_unknown && fuse_unknown_)) ids.push_back(unknown_);
    in_unknown = unknown;
  }
}

void BytePairs::merge_few(Work& work) const {
  std::vector<int32_t>& ids = work.ids_;
  std::vector<int32_t>& ranks = work.ranks_;  // of each symbol with its successor
  size_t n = ids.size();
  ranks.resize(n);
  for (size_t i = 0; i + 1 < n; ++i) ranks[i] = rank(ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == kNoRank) break;
    ids[best] = find(ids[best], ids[best + 1])->result;
    std::memmove(&ids[best + 1], &ids[best + 2], (n - best - 2) * sizeof(int32_t));
    std::memmove(&ranks[best], &ranks[best + 1], (n - best - 1) * sizeof(int32_t));
    --n;
    if (best + 1 < n) ranks[best] = rank(ids[best], ids[best + 1]);
    if (best > 0) ranks[best - 1] = rank(ids[best - 1], ids[best]);
  }
  ids.resize(n);
}

void BytePairs::merge_many(Work& work) const {
  std::vector<Work::Symbol>& symbols = work.symbols_;
  std::vector<Work::Candidate>& heap = work.heap_;
  const auto later = [](const Work::Candidate& a, const Work::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.index > b.index;
  };
  symbols.clear(), heap.clear();
  const auto n = int32_t(work.ids_.size());
  for (int32_t i = 0; i < n; ++i) symbols.push_back({work.ids_[size_t(i)], i - 1, i + 1 < n ? i + 1 : kNone});
  auto add = [&](int32_t index) {
    if (index == kNone || symbols[size_t(index)].after == kNone) return false;
    const int32_t left = symbols[size_t(index)].id, right = symbols[size_t(symbols[size_t(index)].after)].id;
    const Slot* slot = find(left, right);
    if (slot) heap.push_back({slot->rank, index, left, right, slot->result});
    return slot != nullptr;
  };
  for (int32_t i = 0; i < n; ++i) add(i);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Work::Candidate best = heap.back();
    heap.pop_back();
    Work::Symbol& left = symbols[size_t(best.index)];
    // Skips a pair if one of its symbols was merged meanwhile.
    if (left.id != best.left || left.after == kNone || symbols[size_t(left.after)].id != best.right) continue;
    Work::Symbol& right = symbols[size_t(left.after)];
    left.id = best.result, left.after = right.after, right.id = kNone;
    if (left.after != kNone) symbols[size_t(left.after)].before = best.index;
    if (add(best.index)) std::push_heap(heap.begin(), heap.end(), later);
    if (add(left.before)) std::push_heap(heap.begin(), heap.end(), later);
  }
  work.ids_.clear();
  for (int32_t i = 0; i != kNone; i = symbols[size_t(i)].after) work.ids_.push_back(symbols[size_t(i)].id);
}

}  // namespace cleave::text
