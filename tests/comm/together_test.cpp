#include "comm/together.h"

#include <atomic>
#include <stdexcept>

#include "tests/scratch.h"

namespace cleave::comm {
namespace {

TEST(Together, AnErrorOfOneRankIsThrownByAllWithItsRank) {
  std::atomic<int> thrown = 0;
  run_ranks(4, [&](Communicator& world) {
    together(world, Exit::usage, [] {});
    try {
      together(world, Exit::usage, [&] {
        if (world.rank() == 2) fail(Exit::data, "corpus.txt: is empty");
        if (world.rank() == 3) fail(Exit::checkpoint, "another fault");
      });
    } catch (const Error& e) {
      EXPECT_EQ(e.exit(), Exit::data);
      EXPECT_EQ(std::string(e.what()),
                world.rank() == 2 ? "corpus.txt: is empty" : "rank 2: corpus.txt: is empty");
      ++thrown;
    }
    together(world, Exit::usage, [] {});  // the group still works
  });
  EXPECT_EQ(thrown, 4);
}

TEST(Together, OtherExceptionsHaveTheCallersCodeAndALackOfMemoryHasExitMemory) {
  run_ranks(2, [&](Communicator& world) {
    expect_error(Exit::checkpoint, {"a disk broke"}, [&] {
      together(world, Exit::checkpoint, [&] {
        if (world.rank() == 1) throw std::runtime_error("a disk broke");
      });
    });
    expect_error(Exit::memory, {"memory"},
                 [&] { together(world, Exit::usage, [] { throw std::bad_alloc(); }); });
    expect_error(Exit::usage, {"xxx"}, [&] {
      together(world, Exit::usage, [] { fail(Exit::usage, "{}", std::string(10'000, 'x')); });
    });
  });
}

// Rank 1 makes the same calls, but its texts have no terminating 0.
TEST(Together, TextsOfABrokenRankAreBounded) {
  const auto bytes_of = [](std::string& s) {
    return Tensor(s.data(), DType::uint8, {int64_t(s.size())}, MemoryKind::host);
  };
  const auto gather = [&](Communicator& world, std::string mine, const char* what) {
    std::string all(mine.size() * size_t(world.size()), 0);
    Stream stream;
    world.all_gather(bytes_of(all), bytes_of(mine), stream, {.what = what});
  };
  run_ranks(2, [&](Communicator& world) {
    if (world.rank() == 0)
      return expect_error(Exit::data, {"rank 1: " + std::string(2044, 'x')},
                          [&] { together(world, Exit::usage, [] {}); });
    double failed = 1;
    Stream stream;
    world.all_reduce(Tensor(&failed, DType::fp64, {1}, MemoryKind::host), stream, {.what = "agreement"});
    const int32_t exit = int(Exit::data);
    gather(world, std::string(reinterpret_cast<const char*>(&exit), sizeof exit) + std::string(2044, 'x'),
           "agreement");
  });
  run_ranks(2, [&](Communicator& world) {
    if (world.rank() == 0)
      return expect_error(Exit::usage, {"ranks differ"}, [&] { require_alike(world, {{"--seed", "42"}}); });
    double most[] = {1, 2, 3, 4};
    Stream stream;
    world.all_reduce(Tensor(most, DType::fp64, {4}, MemoryKind::host), stream,
                     {.what = "comparing the inputs of the ranks", .by = Reduction::max});
    int64_t size = 0;
    const Call call{.what = "the inputs of rank 0"};
    world.broadcast(Tensor(&size, DType::int64, {1}, MemoryKind::host), 0, stream, call);
    std::string text(size_t(size), 0);
    world.broadcast(bytes_of(text), 0, stream, call);
    gather(world, std::string(1819, 'x'), "the inputs that differ");
  });
}

TEST(Together, EqualFactsPassWithOneSmallMessage) {
  run_ranks(3, [](Communicator& world) {
    require_alike(world, {{"--seed", "42"}, {"--epochs", ""}});
    EXPECT_EQ(world.bytes()[Collective::broadcast] + world.bytes()[Collective::all_gather], 0);
    EXPECT_LE(world.bytes()[Collective::all_reduce], 2 * 32);
  });
  require_alike(*self_communicator(), {{"--seed", "42"}});
}

TEST(Together, DifferentFactsAreNamedEquallyOnAllRanks) {
  std::atomic<int> thrown = 0;
  run_ranks(5, [&](Communicator& world) {
    const int rank = world.rank();
    Facts facts = {{"--seed", rank == 3 ? "43" : "42"},
                   {"same", "1"},
                   {"--epochs", rank == 0 ? "" : "2"},
                   {"text", std::string(200, 'x') + (rank > 2 ? "y" : "x")}};
    if (rank == 4) facts.emplace_back("only here", "5");
    try {
      require_alike(world, facts);
    } catch (const RanksDiffer& e) {
      const std::string said = e.what();
      EXPECT_EQ(e.exit(), Exit::usage);
      EXPECT_TRUE(
          said.starts_with("--seed: ranks differ (ranks 0 to 2, 4: 42, rank 3: 43); "
                           "--epochs: ranks differ (rank 0: not set, ranks 1 to 4: 2); "
                           "text: ranks differ (ranks 0 to 2: xxx"))
          << said;
      EXPECT_NE(said.find(", ranks 3 to 4: xxx"), said.npos) << said;
      EXPECT_TRUE(
          said.ends_with("; only here: ranks differ (ranks 0 to 3: not set, rank 4: 5); "
                         "start all ranks with the same command"))
          << said;
      ++thrown;
    }
    require_alike(world, {{"the group", "goes on"}});
  });
  EXPECT_EQ(thrown, 5);
}

TEST(Together, AtMostEightDifferentFactsAreNamed) {
  run_ranks(2, [](Communicator& world) {
    Facts facts;
    for (int i = 0; i < 20; ++i) facts.emplace_back(fmt::format("name{}", i), std::to_string(world.rank()));
    expect_error(Exit::usage, {"name0: ranks", "name7: ranks", "; and others; start"},
                 [&] { require_alike(world, facts); });
  });
}

}  // namespace
}  // namespace cleave::comm
