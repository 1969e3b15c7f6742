// Units that share one block of memory during a pass: gathered parameters, or gradient buckets.
#pragma once
#include <cstddef>
#include <vector>

#include "zero/region_layout.h"

namespace cleave::zero {

struct Stay {
  int unit = 0;
  int first_use = 0, last_use = 0;  // visits that use it
  Lifetime lifetime = {};           // visits that its memory is occupied for
  int64_t offset = 0;               // of the memory, in elements
};

class Stays {
 public:
  void add(const Stay& stay) { all_.push_back(stay); }
  // Returns the stay of a unit at a visit, which may be extended before lay_out(), or null.
  Stay* find(int unit, int visit) {
    for (Stay& s : all_)
      if (s.unit == unit && s.first_use <= visit && visit <= s.last_use) return &s;
    return nullptr;
  }
  // Returns the elements that are occupied during a visit.
  int64_t numel_at(int visit) const {
    int64_t numel = 0;
    for (const Stay& s : all_)
      if (s.lifetime.first <= visit && visit <= s.lifetime.last) numel += s.lifetime.numel;
    return numel;
  }
  // Assigns all offsets. Call after the last add.
  void lay_out() {
    std::vector<Lifetime> lifetimes;
    for (const Stay& s : all_) lifetimes.push_back(s.lifetime);
    const RegionLayout layout = lay_out_regions(lifetimes);
    for (size_t i = 0; i < all_.size(); ++i) all_[i].offset = layout.offsets[i];
    numel_ = layout.numel;
  }
  int64_t numel() const { return numel_; }  // of the block
  const std::vector<Stay>& all() const { return all_; }

 private:
  std::vector<Stay> all_;
  int64_t numel_ = 0;
};

}  // namespace cleave::zero
