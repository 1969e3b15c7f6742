// Frames and passes without a stage.
#include "runtime/stage/frames.h"

#include <atomic>
#include <set>
#include <thread>

#include "runtime/stage/passes.h"
#include "tests/runtime/low_rank.h"
#include "tests/runtime/small_models.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

// Three layers of width 4 and a head, in one chunk or two; micro-batches of 8 samples.
model::Model three_layers() {
  model::Model m;
  m.name = "three";
  for (const char* name : {"a", "b", "c"})
    m.layers.push_back(std::make_unique<LowRank>(name, std::string("base.") + name, 4));
  m.head = std::make_unique<model::ClassifierHead>(
      model::ClassifierHead::Config{.unit = "head", .weight = "head.weight", .classes = 3, .width = 4});
  m.sample = {DType::fp32, {1, 4}};
  return m;
}
constexpr int64_t kFrameSamples = 8, kBoundary = kFrameSamples * 4 * 4;  // bytes of a layer's input

TEST(Frames, AreHandedOutUntilAllAreInUseAndTheLongestFreeComesFirst) {
  const model::Model model = three_layers();
  const runtime::StageLayers layers(model, {.chunks = {{0, 2}, {2, 3}}, .frames = 2}, kFrameSamples);
  Memory memory;
  Stream stream;
  runtime::Frames frames(layers);
  runtime::Frame dry = frames.dry(0);
  dry.keep.take(DType::uint8, {1000});
  frames.measured(dry);
  frames.allocate(memory);
  EXPECT_GE(frames.bytes().keep, kBoundary + 1000);
  EXPECT_EQ(memory.live().total(Category::activations), 2 * frames.bytes().keep);

  void* const first = frames.open(0, 0, stream).inputs[0].raw();
  runtime::Frame& second = frames.open(7, 1, stream);
  void* const there = second.inputs[0].raw();
  EXPECT_NE(first, there);
  EXPECT_EQ(frames.find(7, 1).inputs[0].raw(), there);
  EXPECT_EQ(frames.find(0, 0).inputs.size(), 3u);
  EXPECT_EQ(second.inputs.size(), 2u);
  expect_error(Exit::internal, {"micro-batch 1 in chunk 0", "all 2 frames"},
               [&] { frames.open(1, 0, stream); });
  expect_error(Exit::internal, {"micro-batch 7 is not in chunk 0"}, [&] { frames.find(7, 0); });
  frames.close(second, stream), frames.close(frames.find(0, 0), stream);
  EXPECT_EQ(frames.open(2, 0, stream).inputs[0].raw(), there);
  EXPECT_EQ(frames.open(3, 0, stream).inputs[0].raw(), first);
}

TEST(Frames, AreNotWrittenBeforeTheirReadersAreDone) {
  const model::Model model = three_layers();
  const runtime::StageLayers layers(model, {.chunks = {{0, 3}}}, kFrameSamples);
  Memory memory;
  Stream reader(Stream::Mode::worker), writer(Stream::Mode::worker);
  runtime::Frames frames(layers);
  frames.measured(frames.dry(0));
  frames.allocate(memory);
  std::atomic<bool> read = false;
  runtime::Frame& f = frames.open(0, 0, writer);
  reader.enqueue([&] { std::this_thread::sleep_for(std::chrono::milliseconds(20)), read = true; });
  f.held = reader.record();
  frames.close(f, writer);
  bool before = true;
  frames.open(1, 0, writer);
  writer.enqueue([&] { before = !read; });
  writer.synchronize(), reader.synchronize();
  EXPECT_FALSE(before);
}

// State for a backward lies in the frame; with recomputation in memory that the layers of a group share; and
// with a split backward in addition in a few blocks that frames take on demand and return.
TEST(Frames, KeepBackwardStateLongEnough) {
  const model::Model model = three_layers();
  for (const bool again : {false, true})
    for (const bool split : {false, true}) {
      runtime::StageShape shape{
          .chunks = {{0, 3}}, .frames = 3, .split_backward = split, .waiting_weights = 1};
      shape.recompute.interval = again ? 1 : 0;
      const runtime::StageLayers layers(model, shape, kFrameSamples);
      Memory memory;
      Stream stream;
      runtime::Frames frames(layers);
      runtime::Frame dry = frames.dry(0);
      frames.until_backward(dry).take(DType::uint8, {640});
      frames.measured(dry);
      frames.allocate(memory);
      frames.begin_pass();
      EXPECT_EQ(frames.bytes().keep, kBoundary + (again ? 0 : 640));
      EXPECT_EQ(frames.bytes().group, again && !split ? 640 : 0);
      EXPECT_EQ(frames.bytes().waiting, again && split ? 640 : 0);
      runtime::Frame &f = frames.open(0, 0, stream), &g = frames.open(1, 0, stream);
      Arena& mine = frames.until_backward(f);
      EXPECT_EQ(&frames.until_backward(f), &mine);
      EXPECT_EQ(&mine == &f.keep, !again);
      EXPECT_EQ(&mine == &frames.group(), again && !split);
      if (!again || !split) continue;
      expect_error(Exit::internal, {"all 1 blocks"}, [&] { frames.until_backward(g); });
      frames.close(f, stream);
      frames.until_backward(g).take(DType::uint8, {640});
    }
}

TEST(Passes, VisitEveryLayerForwardAndBackwardAndTheHeadOnTheLastChunk) {
  const model::Model model = three_layers();
  const auto self = comm::self_communicator();
  for (const bool split : {false, true}) {
    const runtime::StageLayers layers(model, {.chunks = {{0, 2}, {2, 3}}, .split_backward = split},
                                      kFrameSamples);
    Memory memory;
    Stream stream;
    zero::ParameterStore store(memory, {}, stream, stream);
    zero::PlannedVisits planned(memory, store, stream, stream);
    for (const UnitSpec& u : runtime::units_of(model, layers.shape()))
      store.add_unit(u, zero::sharding_of_stage(0, *self, *self));
    const runtime::Passes passes(layers, planned);
    EXPECT_EQ(store.units(), 7);  // two per layer, and the head's
    using Stops = std::vector<runtime::Stop>;
    EXPECT_EQ(passes.of(0).apart, (Stops{{1, false, true}, {0, false, true}}));
    EXPECT_EQ(passes.of(1).apart, (Stops{{1, false, true}, {0, false, true}}));  // head first
    EXPECT_EQ(passes.of(1).fused, passes.of(1).apart);
    std::set<int> all{passes.evaluation()};
    for (int c : {0, 1})
      for (int pass : {passes.of(c).forward, passes.of(c).train, passes.of(c).backward, passes.of(c).weight})
        all.insert(pass);
    EXPECT_EQ(all.size(), 9u);
    planned.commit();
    // Parameters of layers 0 and 1, four per layer; for the second chunk and the head one more.
    planned.begin_pass(passes.of(0).forward, false);
    EXPECT_EQ(planned.acquire(0).size(), 4u);
    planned.begin_pass(passes.evaluation(), false);
    EXPECT_EQ(planned.acquire(1).size(), 1u);
    // For a layer with a split backward, the gradients belong to the weight pass.
    planned.begin_step();
    planned.begin_pass(split ? passes.of(0).weight : passes.of(0).backward, true);
    EXPECT_EQ(planned.acquire(0).size(), split ? 0u : 4u);
    EXPECT_EQ(planned.gradients(0).size(), 4u);
  }
}

}  // namespace
}  // namespace cleave::testing
