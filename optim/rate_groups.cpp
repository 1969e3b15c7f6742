#include "optim/rate_groups.h"

#include <algorithm>
#include <optional>

#include "core/error.h"

namespace cleave::optim {
namespace {

// Returns true if the rates are equal, except that one of them may have no weight decay.
bool agree(const Rates& a, const Rates& b) {
  return a.lr == b.lr && a.momentum == b.momentum && a.beta2 == b.beta2 &&
         (a.weight_decay <= 0 || b.weight_decay <= 0 || a.weight_decay == b.weight_decay);
}

void join(Rates& into, const Rates& one) {
  into.weight_decay = std::max(into.weight_decay, one.weight_decay);
}

}  // namespace

RateGroups::RateGroups(std::span<const Rates> began) : began_(began.begin(), began.end()) {
  std::vector<Rates> found;
  for (const Rates& group : began) {
    const auto at = std::find_if(found.begin(), found.end(), [&](const Rates& r) { return agree(r, group); });
    of_group_.push_back(int(at - found.begin()));
    if (at == found.end())
      found.push_back(group);
    else
      join(*at, group);
  }
  count_ = int(found.size());
}

std::vector<Rates> RateGroups::merged(std::span<const Rates> now) const {
  CHECK(now.size() == began_.size(), "wrong number of rate groups (got {}, expected {})", now.size(),
        began_.size());
  std::vector<std::optional<Rates>> out;
  out.resize(size_t(count_));
  for (size_t g = 0; g < now.size(); ++g) {
    require(now[g].weight_decay <= 0 || began_[g].weight_decay > 0, Exit::usage,
            "parameter group: started without weight decay (got {} now); set it from the start",
            now[g].weight_decay);
    std::optional<Rates>& its = out[size_t(of_group_[g])];
    require(!its || agree(*its, now[g]), Exit::usage,
            "parameter groups: the rates of groups with equal initial rates differ now; give them different "
            "initial rates");
    if (its)
      join(*its, now[g]);
    else
      its = now[g];
  }
  std::vector<Rates> merged;
  for (const std::optional<Rates>& one : out) merged.push_back(*one);
  return merged;
}

}  // namespace cleave::optim
