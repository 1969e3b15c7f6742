// Units that take turns in one block of memory during a pass: gathered parameters, or gradient buckets.
#pragma once
#include <cstddef>
#include <vector>

#include "zero/region_layout.h"

namespace cleave::zero {

struct Stay {
  int unit = 0;
  int first_use = 0, last_use = 0;  // the visits that it is for
  Lifetime lifetime = {};           // from the first visit in which its memory is taken to the last
  int64_t offset = 0;               // of its memory, in elements
};

class Stays {
 public:
  void add(const Stay& stay) { all_.push_back(stay); }
  // The stay that serves a unit at a visit, which may be made longer before lay_out(); null: none.
  Stay* find(int unit, int visit) {
    for (Stay& s : all_)
      if (s.unit == unit && s.first_use <= visit && visit <= s.last_use) return &s;
    return nullptr;
  }
  // Elements whose memory is taken during a visit.
  int64_t numel_at(int visit) const {
    int64_t numel = 0;
    for (const Stay& s : all_)
      if (s.lifetime.first <= visit && visit <= s.lifetime.last) numel += s.lifetime.numel;
    return numel;
  }
  // After the last add: gives each its offset.
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
