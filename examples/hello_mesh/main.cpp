// Each rank of a pipe x data x tensor mesh prints its coordinates and its part of a small GPT.
//   cleave launch -n 8 -- build/release/bin/hello_mesh 2 2 3        (stages, tensor ranks, ZeRO
//       stage)
#include <cstdio>
#include <cstdlib>

#include "cleave.h"
#include "core/units.h"
#include "runtime/stage/pipeline_cut.h"

using namespace cleave;

namespace {

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t d : shape) text += fmt::format("{}{}", text.empty() ? "" : " x ", d);
  return text;
}

int say_hello(Job& job, const char* pipe, const char* tensor, const char* zero) {
  const std::string json = fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
           "pipeline": {{"stages": {}}}, "tensor_parallel": {{"autotp_size": {}}},
           "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}}}})",
      pipe, tensor, zero);
  const DsConfig config = job.read_config_text(json, "arguments").config;
  const ModelFactory make = [](const Axes& axes) {
    return make_model(kGpt2, {.vocab = 256, .positions = 64, .width = 64, .layers = 6, .heads = 4},
                      DType::fp32, 64, "hello", axes);
  };
  Communicator& ranks = job.connect(config);
  Engine engine(config, make, ranks, {.device = job.device()});
  const MeshPlace place = engine.place();
  const runtime::PipelineCut cut = runtime::cut_pipeline(config, make(Axes()));
  const Range layers = cut.stages[size_t(place.pipe)].chunks[0];
  const ParamSpec matrix = engine.model().layers[1]->units()[0].params[2];
  const MemoryTable memory = engine.memory_live();
  if (ranks.rank() == 0)
    std::printf("pipe %d x data %d x tensor %d, ZeRO-%s\n", engine.mesh().pipe, engine.mesh().data,
                engine.mesh().tensor, zero);
  Stream stream;
  for (int turn = 0; turn < ranks.size(); ++turn) {
    ranks.barrier(stream, {.what = "turns to print"});
    if (turn != ranks.rank()) continue;
    std::printf(
        "rank %d: pipe %d data %d tensor %d  layers %lld-%lld%s  of each block's %s %s of %s  weights %s, "
        "gradients %s, optimizer %s\n",
        turn, place.pipe, place.data, place.tensor, (long long)layers.begin, (long long)layers.end - 1,
        cut.stages[size_t(place.pipe)].last ? " and head" : "", matrix.name.c_str() + 4,
        text_of(matrix.shape).c_str(), text_of(matrix.whole_shape()).c_str(),
        format_bytes(memory.total(Category::weights)).c_str(),
        format_bytes(memory.total(Category::gradients)).c_str(),
        format_bytes(memory.total(Category::optimizer_state)).c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto word = [&](int i, const char* otherwise) { return argc > i ? argv[i] : otherwise; };
  return run_job([&](Job& job) { return say_hello(job, word(1, "1"), word(2, "1"), word(3, "0")); });
}
