#include "comm/clock.h"

#include <limits>

namespace cleave::comm {
namespace {

constexpr int kRounds = 8;

}  // namespace

ClockOffset clock_offset(Communicator& ranks, const std::function<double()>& clock) {
  ClockOffset best{0, ranks.rank() == 0 ? 0 : std::numeric_limits<double>::infinity()};
  Stream stream;
  double time = 0;
  const Tensor message(&time, DType::fp64, {1}, MemoryKind::host);
  const Call call{.what = "clocks"};
  for (int asks = 1; asks < ranks.size(); ++asks)
    for (int round = 0; round < kRounds; ++round) {
      if (ranks.rank() == 0) {
        ranks.recv(message, asks, stream, call);
        time = clock();
        ranks.send(message, asks, stream, call);
      } else if (ranks.rank() == asks) {
        const double begin = clock();
        ranks.send(message, 0, stream, call);
        ranks.recv(message, 0, stream, call);
        const double end = clock();
        if (end - begin < best.round_trip) best = {time - (begin + end) / 2, end - begin};
      }
    }
  return best;
}

}  // namespace cleave::comm
