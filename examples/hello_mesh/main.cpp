// Who has what: every rank of a pipe x data x tensor mesh says where it stands and what of a small GPT it
// holds.
//   cleave launch -n 8 -- build/release/bin/hello_mesh 2 2 3        (pipeline stages, tensor ranks, ZeRO
//   stage)
#include <cstdio>
#include <cstdlib>

#include "comm/rendezvous.h"
#include "config_schema/read_config.h"
#include "core/units.h"
#include "launcher/discovery.h"
#include "model/gpt.h"
#include "runtime/engine.h"
#include "runtime/pipeline_plan.h"

using namespace cleave;

namespace {

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t d : shape) text += fmt::format("{}{}", text.empty() ? "" : " x ", d);
  return text;
}

int say_hello(const char* pipe, const char* tensor, const char* zero) {
  const auto world = connect(discover_ranks(environment_of_process()).info);
  Communicator& ranks = world->communicator();
  const std::string json = fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
           "pipeline": {{"stages": {}}}, "tensor_parallel": {{"autotp_size": {}}},
           "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}}}})",
      pipe, tensor, zero);
  const ReadResult config = read_ds_config(json, "arguments", {.world_size = ranks.size()});
  if (!config.ok()) {
    if (ranks.rank() == 0) std::fputs(format(config.problems).c_str(), stderr);
    return int(Exit::usage);
  }
  const ModelFactory make = [](const Axes& axes) {
    return make_gpt({.vocab = 256, .positions = 64, .width = 64, .layers = 6, .heads = 4}, DType::fp32, 64,
                    "hello", axes);
  };
  Engine engine(config.config, make, ranks, {});
  const MeshPlace place = engine.mesh().place(ranks.rank());
  const PipelinePlan plan = plan_pipeline(config.config, make(Axes()));
  const Range layers = plan.stages[size_t(place.pipe)].chunks[0];
  const ParamSpec matrix = engine.model().layers[1]->units()[0].params[2];
  const MemoryTable memory = engine.memory_live();
  if (ranks.rank() == 0)
    std::printf("pipe %d x data %d x tensor %d, ZeRO-%s\n", engine.mesh().pipe, engine.mesh().data,
                engine.mesh().tensor, zero);
  Stream stream;
  for (int turn = 0; turn < ranks.size(); ++turn) {
    ranks.barrier(stream, {.what = "whose turn it is to speak"});
    if (turn != ranks.rank()) continue;
    std::printf(
        "rank %d: pipe %d data %d tensor %d  layers %lld-%lld%s  of each block's %s %s of %s  weights %s, "
        "gradients %s, optimizer %s\n",
        turn, place.pipe, place.data, place.tensor, (long long)layers.begin, (long long)layers.end - 1,
        plan.stages[size_t(place.pipe)].last ? " and head" : "", matrix.name.c_str() + 4,
        text_of(matrix.shape).c_str(), text_of(matrix.whole_shape()).c_str(),
        format_bytes(memory.total(Category::weights)).c_str(),
        format_bytes(memory.total(Category::gradients)).c_str(),
        format_bytes(memory.total(Category::optimizer_state)).c_str());
    std::fflush(stdout);
  }
  world->leave();
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  return say_hello(argc > 1 ? argv[1] : "1", argc > 2 ? argv[2] : "1", argc > 3 ? argv[3] : "0");
} catch (const Error& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return int(e.exit());
}
