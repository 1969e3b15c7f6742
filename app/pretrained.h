// A checkpoint opened for evaluation and generation: its own model, fp32, without optimizer states.
#pragma once
#include <memory>
#include <string>

#include "runtime/engine.h"

namespace cleave {

class Pretrained {
 public:
  // Collective over world.
  Pretrained(const std::string& dir, const std::string& tag, int64_t micro_batch, Communicator& world,
             Device device = {});

  Engine& engine() { return *engine_; }
  int64_t seq_len() const { return seq_len_; }
  int64_t vocab() const { return vocab_; }
  bool bytes() const { return bytes_; }  // tokens are bytes

 private:
  std::unique_ptr<Engine> engine_;
  int64_t seq_len_ = 0, vocab_ = 0;
  bool bytes_ = false;
};

}  // namespace cleave
