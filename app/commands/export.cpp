#include <cstdio>

#include "app/commands.h"
#include "app/parse.h"
#include "app/published_model.h"
#include "core/units.h"

namespace cleave::app {
namespace {

constexpr std::pair<const char*, DType> kTypes[] = {
    {"fp32", DType::fp32}, {"bf16", DType::bf16}, {"fp16", DType::fp16}};

}  // namespace

int run_export(const Arguments& arguments) {
  CLI::App app(
      "Converts a checkpoint to a model folder for transformers, vLLM and others: safetensors, config.json "
      "and tokenizer files.\nExample: cleave export runs/first first-hf --dtype bf16",
      "export");
  std::string from, to, tag = "latest", dtype = "fp32", size = "5GB";
  app.add_option("dir", from, "folder of checkpoints, or one checkpoint")->required();
  app.add_option("out", to, "folder to create; must not exist or be empty")->required();
  app.add_option("--tag", tag, "which checkpoint")->capture_default_str();
  app.add_option("--dtype", dtype, "type of the weights: fp32, bf16 or fp16")
      ->capture_default_str()
      ->check(one_of({"fp32", "bf16", "fp16"}));
  app.add_option("--max_shard_size", size, "largest weight file, such as 500MB")->capture_default_str();
  bool adapter = false;
  app.add_flag("--adapter", adapter,
               "write the LoRA adapters alone, for PEFT; by default they are merged into the weights");
  if (!parse(app, arguments)) return 0;
  require_free(to);
  checkpoint::WeightFormat format{.max_file_size = parse_bytes(size, "--max_shard_size")};
  require(format.max_file_size > 0, Exit::usage, "--max_shard_size: must be above 0");
  for (const auto& [name, type] : kTypes)
    if (dtype == name) format.dtype = type;
  const CheckpointName which = named_checkpoint(from, tag);
  const std::string line = adapter ? export_adapters(which.folder, which.tag, to, format.dtype)
                                   : export_checkpoint(which.folder, which.tag, to, format);
  std::printf("%s\n", line.c_str());
  return 0;
}

}  // namespace cleave::app
