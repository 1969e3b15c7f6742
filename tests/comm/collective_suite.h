// Tests that every transport must pass. A test file includes this once and instantiates both suites for its
// transports.
#pragma once
#include <tuple>

#include "tests/comm/collectives.h"

namespace cleave::comm {

class Transports : public testing::TestWithParam<const test::Transport*> {};
class TransportsAndTypes : public testing::TestWithParam<std::tuple<const test::Transport*, DType>> {};

TEST_P(TransportsAndTypes, ReduceInRankOrderAndGatherByRank) {
  test::expect_collectives(*std::get<0>(GetParam()), std::get<1>(GetParam()));
}
TEST_P(Transports, GiveTheSameBitsForEveryCutOfACall) { test::expect_cuts_change_nothing(*GetParam()); }
TEST_P(Transports, MoveOnlyTheRequestedPiecesOfShards) { test::expect_pieces_of_shards(*GetParam()); }
TEST_P(Transports, TakeNoNaNForTheLargest) { test::expect_max_of_numbers(*GetParam()); }
TEST_P(Transports, CountTheBytesTheySend) { test::expect_bytes_counted(*GetParam()); }
TEST_P(Transports, SendWithoutWaitingForTheReceiver) { test::expect_point_to_point(*GetParam()); }
TEST_P(Transports, SplitByColorAndRank) { test::expect_splits(*GetParam()); }
TEST_P(Transports, KeepTheOrderOfCallsAcrossStreams) { test::expect_streams(*GetParam()); }

namespace test {

inline constexpr DType kTypes[] = {DType::fp32,  DType::fp16,  DType::bf16,   DType::fp64,
                                   DType::int64, DType::int32, DType::uint16, DType::uint8};

inline std::string name_of_transport(const testing::TestParamInfo<const Transport*>& p) {
  return p.param->name;
}

inline std::string name_of_transport_and_type(
    const testing::TestParamInfo<std::tuple<const Transport*, DType>>& p) {
  return std::get<0>(p.param)->name + "_" + std::string(name_of(std::get<1>(p.param)));
}

}  // namespace test
}  // namespace cleave::comm
