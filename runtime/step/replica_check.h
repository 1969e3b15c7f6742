// Checksums of the weights with copies on several ranks, in shares of the weights per step. A copy is one of
// three kinds, which are compared separately: on the ranks of the data axis, on the ranks of an axis
// that cuts other parameters of the layer, or on pipeline stages that share a unit.
#pragma once
#include <array>
#include <map>
#include <string>
#include <vector>

#include "config_schema/ds_config.h"
#include "runtime/step/rank_state.h"

namespace cleave::runtime {

class ReplicaCheck {
 public:
  enum class Kind : uint8_t { data, uncut, tied };
  static constexpr int kKinds = 3;
  // Ranks with the same key, if it is not 0, have copies of the same weights; then the sums are equal.
  struct Sum {
    int64_t key = 0, sum = 0;
  };
  using Sums = std::array<Sum, kKinds>;

  // Compares all weights once in `steps` steps.
  ReplicaCheck(Ranks& ranks, int64_t steps, config::ReplicaPolicy policy, Device device);

  // Enqueues the sums of this step's share on `compute`; they are in sums() when the work until now is done.
  void enqueue(RankState& rank, int64_t step, Stream& compute);
  Sums sums() const;

  // Acts on the sums of all ranks in a step. On the data axis, the policy applies; for other kinds on a GPU
  // only a warning follows, because libraries may add in another order on each rank. Returns warnings. Throws
  // Error(training) on all ranks. Collective if the sums show a difference.
  std::vector<std::string> compare(RankState& rank, int64_t step, const std::vector<Sums>& of_ranks,
                                   Stream& compute);

 private:
  struct Piece {
    int unit = 0, param = 0;
    Range range;  // elements in the flat order of the unit
    Kind kind = Kind::data;
    int64_t owners = 0;  // equal on the ranks with a copy
    std::string name;
  };
  struct Difference {
    Piece piece;                    // of the first rank that reports it; its indices are of this rank, or -1
    std::vector<int> most, others;  // ranks with the most frequent bits, and with other bits
  };
  void find_pieces(RankState& rank);
  std::vector<const Piece*> share(int64_t step) const;
  std::vector<Difference> differences(RankState& rank, int64_t step, Stream& compute);
  bool repair(RankState& rank, const std::vector<Difference>& found, Stream& compute);

  Ranks& ranks_;
  const int64_t steps_;
  const config::ReplicaPolicy policy_;
  std::vector<std::vector<Piece>> shares_;  // by step modulo their number; empty before the first check
  Memory memory_;                           // of the sums; outside of the plan, because they are 24 bytes
  Buffer on_device_, on_host_;
  std::array<int64_t, kKinds> keys_ = {};
  std::map<std::string, int64_t> warned_;  // first step by weight
};

}  // namespace cleave::runtime
