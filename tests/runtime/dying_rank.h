// A rank that fails in the middle of a step.
#pragma once
#include <chrono>

#include "tests/runtime/small_models.h"
#include "tests/scratch.h"

namespace cleave::testing {

// The victim's data source throws at its third micro-batch: all ranks fail with its message long before the
// deadline.
inline void expect_all_end_with(int victim, int ranks, const config::DsConfig& c,
                                const runtime::ModelFactory& model, int64_t seq = kSeq) {
  const auto began = std::chrono::steady_clock::now();
  const std::string words = fmt::format("rank {} dies", victim);
  expect_error(Exit::training, {words}, [&] {
    comm::run_ranks(ranks,
                    [&](comm::Communicator& world) {
                      runtime::Engine engine(c, model, world, {});
                      Tokens tokens(engine.samples_per_micro(), seq);
                      const MeshShape mesh = engine.mesh();
                      const int place = engine.place().data;
                      engine.train_batch([&](int micro) {
                        require(world.rank() != victim || micro != 2, Exit::training, "{}", words);
                        return tokens.at(0,
                                         (int64_t(micro) * mesh.data + place) * engine.samples_per_micro());
                      });
                      FAIL() << "rank " << world.rank() << " finished a step without rank " << victim;
                    },
                    {.timeout = std::chrono::seconds(60)});
  });
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30)) << words;
}

}  // namespace cleave::testing
