#include "app/pretrained.h"

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "model/config_json.h"
#include "runtime/training_state.h"

namespace cleave {

Pretrained::Pretrained(const std::string& dir, const std::string& tag, int64_t micro_batch,
                       Communicator& world, Device device) {
  const CheckpointReader reader(dir, tag);
  std::string name;
  ModelConfig model;
  try {
    const auto client = nlohmann::json::parse(from_json(reader.state(), reader.path().string()).client);
    name = client.at("model"), seq_len_ = client.at("seq_len"), vocab_ = client.at("vocab");
    // Checkpoints of version 0.1 name a preset only.
    model = client.contains("config") ? read_config_json(client["config"].dump(), reader.path().string())
                                      : find_model(name);
    bytes_ = client.at("tokenizer") == "byte";
  } catch (const nlohmann::json::exception& e) {
    fail(Exit::checkpoint, "{} was not written by cleave train: {}", reader.path().string(), e.what());
  }
  vocab_of(model) = vocab_;
  DsConfig config;
  config.train_micro_batch_size_per_gpu = micro_batch;
  config.gradient_accumulation_steps = 1;
  config.train_batch_size = micro_batch * world.size();
  config.optimizer.type = "SGD";  // no states, so loading reads the masters only
  const ModelFactory make = [&](const Axes& axes) {
    return make_model(model, DType::fp32, seq_len_, name, axes);
  };
  engine_ = std::make_unique<Engine>(config, make, world, EngineOptions{.device = device});
  engine_->load_checkpoint(dir, tag);
}

}  // namespace cleave
