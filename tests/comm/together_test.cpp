#include "comm/together.h"

#include <atomic>
#include <stdexcept>

#include "tests/scratch.h"

namespace cleave::comm {
namespace {

TEST(Together, WhatOneRankThrowsAllThrowAndNameIt) {
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
    together(world, Exit::usage, [] {});  // the group goes on
  });
  EXPECT_EQ(thrown, 4);
}

TEST(Together, OtherExceptionsHaveTheCallersCodeAndALackOfMemoryItsOwn) {
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

}  // namespace
}  // namespace cleave::comm
