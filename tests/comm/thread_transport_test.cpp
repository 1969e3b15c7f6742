#include <atomic>
#include <chrono>
#include <thread>

#include "comm/mesh.h"
#include "comm/planned.h"
#include "comm/traced.h"
#include "tests/comm/collective_suite.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using test::has;

const test::Transport kThreads{
    "threads",
    [](int size, const test::Body& body, const CommOptions& options) { run_ranks(size, body, options); },
    {1, 2, 3, 4, 5},
    30'000};
const test::Transport kSelf{"self",
                            [](int, const test::Body& body, const CommOptions&) {
                              auto self = self_communicator();
                              body(*self);
                            },
                            {1},
                            30'000};

const test::Transport* const kThreadTransports[] = {&kSelf, &kThreads};
INSTANTIATE_TEST_SUITE_P(, Transports, testing::ValuesIn(kThreadTransports), test::name_of_transport);
INSTANTIATE_TEST_SUITE_P(, TransportsAndTypes,
                         testing::Combine(testing::ValuesIn(kThreadTransports),
                                          testing::ValuesIn(test::kTypes)),
                         test::name_of_transport_and_type);

TEST(RunRanks, GivesEachRankItsNumber) {
  std::atomic<int> seen{0};
  run_ranks(5, [&](Communicator& world) {
    EXPECT_EQ(world.size(), 5);
    EXPECT_EQ(world.name(), "world");
    seen += 1 << world.rank();
  });
  EXPECT_EQ(seen, 31);
}

TEST(RunRanks, RethrowsTheFirstFailureAndReleasesTheOthers) {
  std::atomic<int> freed{0};
  const std::string message = error_of(
      [&] {
        run_ranks(4, [&](Communicator& world) {
          Stream stream;
          if (world.rank() == 2) fail(Exit::data, "no more tokens");
          auto group = world.rank() == 2 ? nullptr : std::make_unique<int>(0);
          try {
            world.barrier(stream);
          } catch (const Error& e) {
            EXPECT_EQ(e.exit(), Exit::rank_lost);
            EXPECT_TRUE(has(e.what(), "rank 2 failed: no more tokens")) << e.what();
            ++freed;
            throw;
          }
        });
      },
      Exit::data);
  EXPECT_EQ(message, "no more tokens");
  EXPECT_EQ(freed, 3);
}

TEST(RunRanks, ReleasesRanksThatWaitInSubgroups) {
  const std::string message = error_of(
      [&] {
        run_ranks(3, [&](Communicator& world) {
          Stream stream;
          auto pair = world.split(
              {world.rank() == 0, std::max(0, world.rank() - 1), world.rank() == 0 ? 1 : 2}, "pair");
          if (world.rank() == 0) fail(Exit::data, "damaged");
          if (world.rank() == 1) pair->barrier(stream);
          float x = 0;
          if (world.rank() == 2) pair->recv(Tensor(&x, DType::fp32, {1}), 0, stream);
        });
      },
      Exit::data);
  EXPECT_EQ(message, "damaged");
}

TEST(Deadline, NamesTheCallAndTheMissingRanks) {
  const std::string message = error_of(
      [] {
        run_ranks(
            4,
            [](Communicator& world) {
              Stream stream;
              auto data = world.split({world.rank() / 3, world.rank() % 3, world.rank() < 3 ? 3 : 1}, "data");
              if (world.rank() == 3) return;
              data->barrier(stream);
              std::vector<float> x(10);
              if (world.rank() == 1) std::this_thread::sleep_for(400ms);
              data->all_reduce(Tensor(x.data(), DType::fp32, {10}), stream, {.what = "gradients of h.3"});
            },
            {.timeout = 100ms});
      },
      Exit::rank_lost);
  EXPECT_TRUE(has(message, "all_reduce of 10 fp32 (gradients of h.3), call 2 of group 'data'")) << message;
  EXPECT_TRUE(has(message, "waited 0.1 s")) << message;
  EXPECT_TRUE(has(message, "Present: ranks 0, 2; missing: rank 1.")) << message;
}

TEST(Deadline, AppliesToAReceive) {
  const std::string message = error_of(
      [] {
        run_ranks(2,
                  [](Communicator& world) {
                    Stream stream;
                    double x = 0;
                    if (world.rank() == 1)
                      world.recv(Tensor(&x, DType::fp64, {1}), 0, stream, {.what = "activations"});
                  },
                  {.timeout = 50ms});
      },
      Exit::rank_lost);
  EXPECT_TRUE(has(message, "recv of 1 fp64 from rank 0 (activations)")) << message;
  EXPECT_TRUE(has(message, "missing: rank 0")) << message;
}

TEST(Deadline, IsNotMissedByASlowRank) {
  std::atomic<bool> came = false;
  std::atomic<int> behind = 0;
  run_ranks(2,
            [&](Communicator& world) {
              Stream stream;
              if (world.rank() == 1) {
                std::this_thread::sleep_for(50ms);
                came = true;
              }
              world.barrier(stream);
              stream.synchronize();
              EXPECT_TRUE(came) << "rank " << world.rank() << " did not wait for the slow one";
              ++behind;
            },
            {.timeout = 20s});
  EXPECT_EQ(behind, 2);
}

TEST(Disagreement, IsReportedBeforeDataMoves) {
  const auto disagree = [](auto call) {
    return error_of(
        [&] {
          run_ranks(2, [&](Communicator& world) {
            Stream stream;
            call(world, stream);
          });
        },
        Exit::internal);
  };
  float x[8] = {}, y[8] = {};
  std::string message = disagree([&](Communicator& world, Stream& stream) {
    world.all_reduce(Tensor(world.rank() ? x : y, DType::fp32, {4 + world.rank()}), stream);
  });
  EXPECT_TRUE(has(message, "all_reduce of 4 fp32") && has(message, "all_reduce of 5 fp32")) << message;
  message = disagree([&](Communicator& world, Stream& stream) {
    world.all_reduce(Tensor(world.rank() ? x : y, world.rank() ? DType::fp32 : DType::int32, {4}), stream);
  });
  EXPECT_TRUE(has(message, "4 fp32") && has(message, "4 int32")) << message;
  message = disagree([&](Communicator& world, Stream& stream) {
    world.all_reduce(Tensor(world.rank() ? x : y, DType::fp32, {4}), stream,
                     {.by = world.rank() ? Reduction::max : Reduction::sum});
  });
  EXPECT_TRUE(has(message, "all_reduce of 4 fp32") && has(message, "all_reduce by max of 4 fp32")) << message;
  message = disagree([&](Communicator& world, Stream& stream) {
    if (world.rank()) return world.barrier(stream);
    world.all_reduce(Tensor(x, DType::fp32, {4}), stream);
  });
  EXPECT_TRUE(has(message, "barrier") && has(message, "all_reduce")) << message;
  message = disagree([&](Communicator& world, Stream& stream) {
    world.broadcast(Tensor(world.rank() ? x : y, DType::fp32, {4}), world.rank(), stream);
  });
  EXPECT_TRUE(has(message, "from rank 0") && has(message, "from rank 1")) << message;
  message = disagree([&](Communicator& world, Stream& stream) {
    if (world.rank() == 0) return world.send(Tensor(x, DType::fp32, {4}), 1, stream);
    world.recv(Tensor(y, DType::fp32, {3}), 0, stream);
  });
  EXPECT_TRUE(has(message, "recv of 3") && has(message, "send of 4")) << message;
}

TEST(ReductionByMax, PassesThroughAWrappingCommunicatorIntoThePlan) {
  run_ranks(3, [](Communicator& world) {
    Trace trace;
    Stream stream;
    const auto traced = traced_communicator(world, trace);
    float x = float(world.rank() == 1 ? 5 : -world.rank()), all[3] = {x, x + 1, x + 2}, mine = 0;
    traced->all_reduce(Tensor(&x, DType::fp32, {1}), stream, {.by = Reduction::max});
    traced->reduce_scatter(Tensor(&mine, DType::fp32, {1}), Tensor(all, DType::fp32, {3}), stream,
                           {.by = Reduction::max});
    EXPECT_EQ(x, 5);
    EXPECT_EQ(mine, float(5 + world.rank()));
  });
  std::vector<Post> posts;
  const auto planned = planned_communicator(0, 2, [&](auto&, const Post& post) { posts.push_back(post); });
  Stream stream;
  float x[4] = {};
  planned->all_reduce(Tensor(x, DType::fp32, {4}), stream, {.by = Reduction::max});
  planned->reduce_scatter(Tensor(x, DType::fp32, {2}), Tensor(x, DType::fp32, {4}), stream,
                          {.by = Reduction::max});
  planned->all_reduce(Tensor(x, DType::fp32, {4}), stream);
  ASSERT_EQ(posts.size(), 3u);
  EXPECT_EQ(posts[0], (Post{Collective::all_reduce, DType::fp32, -1, 4, Reduction::max}));
  EXPECT_EQ(posts[1].by, Reduction::max);
  EXPECT_EQ(posts[2].by, Reduction::sum);
}

TEST(Abort, ReleasesAWaitingRankWithTheReason) {
  run_ranks(
      2,
      [](Communicator& world) {
        Stream stream;
        if (world.rank() == 0) {
          std::this_thread::sleep_for(20ms);
          world.abort("the loss is not finite");
          world.abort("a second reason");
          return;
        }
        const std::string message = error_of([&] { world.barrier(stream); }, Exit::rank_lost);
        EXPECT_TRUE(has(message, "the loss is not finite")) << message;
        EXPECT_TRUE(has(error_of([&] { world.barrier(stream); }, Exit::rank_lost), "the loss is not finite"));
      },
      {.timeout = 20s});
}

TEST(Abort, ReachesTheHostThroughTheStream) {
  run_ranks(2, [](Communicator& world) {
    Stream stream(Stream::Mode::worker);
    if (world.rank() == 0) return world.abort("enough");
    world.barrier(stream);
    EXPECT_TRUE(has(error_of([&] { stream.synchronize(); }, Exit::rank_lost), "enough"));
  });
}

TEST(Arguments, ThatDoNotMatchAreRejected) {
  auto self = self_communicator();
  Stream stream;
  float x[8] = {};
  const Tensor four(x, DType::fp32, {4}), two(x + 1, DType::fp32, {2});
  EXPECT_THROW(self->all_gather(four, two, stream), Error);                                  // sizes
  EXPECT_THROW(self->all_gather(four, Tensor(x, DType::int32, {4}), stream), Error);         // types
  EXPECT_THROW(self->reduce_scatter(Tensor(x + 2, DType::fp32, {4}), four, stream), Error);  // overlap
  EXPECT_THROW(self->all_to_all(two, four, stream), Error);                                  // sizes
  EXPECT_THROW(self->all_to_all(four, four, stream), Error);                                 // overlap
  EXPECT_THROW(self->all_reduce(Tensor(x, DType::uint8, {4}), stream), Error);  // cannot be reduced
  EXPECT_THROW(self->broadcast(four, 1, stream), Error);
  EXPECT_THROW(self->send(four, 0, stream), Error);
  EXPECT_THROW(self->recv(four, 0, stream), Error);
}

TEST(Mesh, PutsTensorInnermost) {
  run_ranks(12, [](Communicator& world) {
    const Mesh mesh(world, {.pipe = 2, .data = 3, .tensor = 2});
    EXPECT_EQ(mesh.tensor->rank(), world.rank() % 2);
    EXPECT_EQ(mesh.data->rank(), world.rank() / 2 % 3);
    EXPECT_EQ(mesh.pipe->rank(), world.rank() / 6);
    EXPECT_EQ(mesh.pipe->size() * 100 + mesh.data->size() * 10 + mesh.tensor->size(), 232);
    Stream stream;
    int32_t sum = world.rank();
    mesh.pipe->all_reduce(Tensor(&sum, DType::int32, {1}), stream);
    EXPECT_EQ(sum, world.rank() % 6 * 2 + 6);
  });
}

TEST(Mesh, RanksOfASequenceAreAdjacentAndAreRanksOfTheDataAxis) {
  run_ranks(12, [](Communicator& world) {
    const Mesh mesh(world, {.pipe = 1, .data = 3, .sequence = 2, .tensor = 2});
    EXPECT_EQ(mesh.tensor->rank(), world.rank() % 2);
    EXPECT_EQ(mesh.sequence->rank(), world.rank() / 2 % 2);
    EXPECT_EQ(mesh.data->rank(), world.rank() / 2);
    EXPECT_EQ(mesh.data->size() * 100 + mesh.sequence->size() * 10 + mesh.tensor->size(), 622);
    EXPECT_EQ(mesh.place, (MeshPlace{0, world.rank() / 4, world.rank() / 2 % 2, world.rank() % 2}));
    Stream stream;
    int32_t sum = world.rank();
    mesh.sequence->all_reduce(Tensor(&sum, DType::int32, {1}), stream);
    EXPECT_EQ(sum, 2 * (world.rank() / 4 * 4 + world.rank() % 2) + 2);
  });
}

TEST(Mesh, PlacesAreTheCoordinatesOfTheGrid) {
  const MeshShape shape{.pipe = 2, .data = 3, .tensor = 2};
  int rank = 0;
  for (int p = 0; p < 2; ++p)
    for (int d = 0; d < 3; ++d)
      for (int t = 0; t < 2; ++t) EXPECT_EQ(shape.place(rank++), (MeshPlace{p, d, 0, t}));
}

TEST(Mesh, AnAxisOfAllRanksIsTheWorldAndAnAxisOfOneRankIsFree) {
  run_ranks(3, [](Communicator& world) {
    const Mesh mesh(world, {.pipe = 1, .data = 3, .tensor = 1});
    EXPECT_EQ(mesh.data, &world);
    EXPECT_EQ(mesh.pipe->size(), 1);
    EXPECT_EQ(mesh.tensor->size(), 1);
  });
}

TEST(Mesh, NamesTheFactorsThatDoNotMatch) {
  const std::string message = error_of(
      [] { run_ranks(4, [](Communicator& world) { Mesh(world, {.pipe = 1, .data = 3, .tensor = 1}); }); },
      Exit::usage);
  EXPECT_TRUE(has(message, "pipe 1 x data 3 x tensor 1 = 3 ranks, but this job has 4")) << message;
}

}  // namespace
}  // namespace cleave::comm
