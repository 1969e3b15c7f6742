#include "data/ngram.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"

namespace cleave::data {
namespace {

constexpr uint64_t low_bytes(uint64_t value, int count) { return value & ((uint64_t(1) << (8 * count)) - 1); }

}  // namespace

NgramModel::Table::Table() : entries_(64) {}

size_t NgramModel::Table::slot_of(uint64_t key) const {
  const size_t mask = entries_.size() - 1;
  size_t i = size_t(key * 0x9E3779B97F4A7C15ull >> 20) & mask;
  while (entries_[i].key_plus_one != 0 && entries_[i].key_plus_one != key + 1) i = (i + 1) & mask;
  return i;
}

const NgramModel::Entry* NgramModel::Table::find(uint64_t key) const {
  const Entry& entry = entries_[slot_of(key)];
  return entry.key_plus_one ? &entry : nullptr;
}

NgramModel::Entry& NgramModel::Table::at(uint64_t key) {
  size_t i = slot_of(key);
  if (entries_[i].key_plus_one == 0) {
    if (2 * ++used_ > entries_.size()) {
      grow();
      i = slot_of(key);
    }
    entries_[i].key_plus_one = key + 1;
  }
  return entries_[i];
}

void NgramModel::Table::grow() {
  std::vector<Entry> old(entries_.size() * 4);
  old.swap(entries_);
  for (const Entry& entry : old)
    if (entry.key_plus_one) entries_[slot_of(entry.key_plus_one - 1)] = entry;
}

NgramModel::NgramModel(std::span<const uint8_t> train, int max_order) {
  CHECK(1 <= max_order && max_order <= kMaxOrder, "an n-gram model of order {}; 1 to {}", max_order,
        kMaxOrder);
  require(train.size() < UINT32_MAX, Exit::data,
          "n-gram model: text too long (got {} bytes, expected at most 4 GiB)", train.size());
  grams_.resize(size_t(max_order) + 1);
  grams_[0].at(0).count = uint32_t(train.size());
  uint64_t recent = 0;  // the last bytes read, the newest lowest
  for (size_t i = 0; i < train.size(); ++i) {
    const uint64_t before = recent;
    recent = recent << 8 | train[i];
    for (int n = 1; n <= max_order && size_t(n) <= i + 1; ++n) {
      Entry& context = grams_[size_t(n - 1)].at(low_bytes(before, n - 1));
      Entry& gram = grams_[size_t(n)].at(low_bytes(recent, n));
      ++context.followed;
      if (gram.count++ == 0) ++context.followers;
    }
  }
}

void NgramModel::probabilities(std::span<const uint8_t> before, uint8_t next, std::span<double> out) const {
  const int orders = int(out.size());
  CHECK(orders <= max_order(), "{} orders of an n-gram model of order {}", orders, max_order());
  double p = 1.0 / 256;
  uint64_t context_key = 0;
  for (int n = 1; n <= orders; ++n) {
    if (n > 1 && before.size() >= size_t(n - 1))
      context_key |= uint64_t(before[before.size() - size_t(n - 1)]) << (8 * (n - 2));
    const Entry* context = before.size() >= size_t(n - 1) ? grams_[size_t(n - 1)].find(context_key) : nullptr;
    if (context && context->followed) {
      const Entry* gram = grams_[size_t(n)].find(context_key << 8 | next);
      const double kinds = context->followers;
      p = ((gram ? gram->count : 0) + kinds * p) / (context->followed + kinds);
    }
    out[size_t(n - 1)] = p;
  }
}

std::vector<double> ngram_losses(std::span<const uint8_t> train, std::span<const uint8_t> validation,
                                 int max_order) {
  require(!train.empty() && !validation.empty(), Exit::data,
          "n-gram losses: training or validation text too short (got {} and {} bytes); use a longer text",
          train.size(), validation.size());
  const NgramModel model(train, max_order);
  std::vector<double> losses(size_t(max_order), 0.0);
  std::array<double, NgramModel::kMaxOrder> p{};
  for (size_t i = 0; i < validation.size(); ++i) {
    model.probabilities(validation.first(i), validation[i], std::span(p).first(size_t(max_order)));
    for (size_t n = 0; n < losses.size(); ++n) losses[n] -= std::log(p[n]);
  }
  for (double& loss : losses) loss /= double(validation.size());
  return losses;
}

}  // namespace cleave::data
