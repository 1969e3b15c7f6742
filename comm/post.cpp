#include "comm/post.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cleave::comm {

std::string describe(const Post& post) {
  if (post.op == Collective::barrier) return "barrier";
  std::string text = fmt::format("{}{} of {} {}", name_of(post.op),
                                 post.by == Reduction::max ? " by max" : "", post.numel, name_of(post.dtype));
  if (post.op == Collective::send) return text + fmt::format(" to rank {}", post.peer);
  if (post.peer >= 0) return text + fmt::format(" from rank {}", post.peer);
  return text;
}

std::string describe(const Waiting& w) {
  return fmt::format("{}{}, call {} of group '{}'", describe(w.post),
                     w.what.empty() ? "" : " (" + w.what + ")", w.number, w.group);
}

std::string deadline_report(const Waiting& w, const std::vector<bool>& present,
                            std::chrono::milliseconds timeout) {
  std::vector<int> here, missing;
  for (size_t r = 0; r < present.size(); ++r) (present[r] ? here : missing).push_back(w.ranks[r]);
  const std::string waited = fmt::format("{}: rank {} waited {:.1f} s, the deadline", describe(w),
                                         w.ranks[size_t(w.rank)], double(timeout.count()) / 1000);
  if (missing.empty())
    return waited +
           ". All ranks are in the call with this number, but with other operands, or on a broken connection";
  return fmt::format(
      "{}. Present: rank{} {}; missing: rank{} {}. A missing rank has died, hangs, or made another call; if "
      "it "
      "is only slow, raise the communication timeout",
      waited, here.size() == 1 ? "" : "s", fmt::join(here, ", "), missing.size() == 1 ? "" : "s",
      fmt::join(missing, ", "));
}

std::string mismatch_report(const Waiting& w, int other_rank, const Post& other) {
  return fmt::format("ranks make different calls: rank {} is in {}, rank {} is in {}. No data was moved",
                     w.ranks[size_t(w.rank)], describe(w), w.ranks[size_t(other_rank)], describe(other));
}

}  // namespace cleave::comm
