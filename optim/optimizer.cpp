#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "config_schema/ds_config.h"
#include "kernels/elementwise.h"
#include "kernels/update.h"

namespace cleave::optim {
namespace {

float decay_of(const UpdateSlice& s, const StepArgs& args, const config::OptimizerConfig& config) {
  return s.decay ? float(args.rates.weight_decay >= 0 ? args.rates.weight_decay : config.weight_decay) : 0.0f;
}

class AdamOptimizer final : public Optimizer {
 public:
  explicit AdamOptimizer(const config::OptimizerConfig& config) : config_(config) {}

  std::vector<std::string> states() const override { return {"exp_avg", "exp_avg_sq"}; }

  void update(const UpdateSlice& s, const StepArgs& args, Stream& stream) const override {
    kernels::launch(
        kernels::Adam{.param = s.param,
                      .m = s.state[0],
                      .v = s.state[1],
                      .copy = s.copy,
                      .grad = s.grad,
                      .lr = float(args.rates.lr),
                      .beta1 = float(args.rates.momentum >= 0 ? args.rates.momentum : config_.beta1),
                      .beta2 = float(args.rates.beta2 >= 0 ? args.rates.beta2 : config_.beta2),
                      .eps = float(config_.eps),
                      .weight_decay = decay_of(s, args, config_),
                      .grad_scale = float(args.grad_scale),
                      .step = args.step,
                      .decoupled = config_.decoupled,
                      .bias_correction = config_.bias_correction},
        stream);
  }

 private:
  config::OptimizerConfig config_;
};

class SgdOptimizer final : public Optimizer {
 public:
  explicit SgdOptimizer(const config::OptimizerConfig& config) : config_(config) {}

  std::vector<std::string> states() const override {
    return config_.momentum != 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
  }

  // Ignores args.rates.momentum: schedules set betas only, and this optimizer has none.
  void update(const UpdateSlice& s, const StepArgs& args, Stream& stream) const override {
    kernels::launch(kernels::Sgd{.param = s.param,
                                 .buffer = s.state[0],
                                 .copy = s.copy,
                                 .grad = s.grad,
                                 .lr = float(args.rates.lr),
                                 .momentum = float(config_.momentum),
                                 .dampening = float(config_.dampening),
                                 .weight_decay = decay_of(s, args, config_),
                                 .grad_scale = float(args.grad_scale),
                                 .nesterov = config_.nesterov,
                                 .first = args.step == 1},
                    stream);
  }

 private:
  config::OptimizerConfig config_;
};

class LionOptimizer final : public Optimizer {
 public:
  explicit LionOptimizer(const config::OptimizerConfig& config) : config_(config) {}

  std::vector<std::string> states() const override { return {"exp_avg"}; }

  void update(const UpdateSlice& s, const StepArgs& args, Stream& stream) const override {
    kernels::launch(
        kernels::Lion{.param = s.param,
                      .m = s.state[0],
                      .copy = s.copy,
                      .grad = s.grad,
                      .lr = float(args.rates.lr),
                      .beta1 = float(args.rates.momentum >= 0 ? args.rates.momentum : config_.beta1),
                      .beta2 = float(args.rates.beta2 >= 0 ? args.rates.beta2 : config_.beta2),
                      .weight_decay = decay_of(s, args, config_),
                      .grad_scale = float(args.grad_scale)},
        stream);
  }

 private:
  config::OptimizerConfig config_;
};

class AdagradOptimizer final : public Optimizer {
 public:
  explicit AdagradOptimizer(const config::OptimizerConfig& config) : config_(config) {}

  std::vector<std::string> states() const override { return {"sum"}; }

  void update(const UpdateSlice& s, const StepArgs& args, Stream& stream) const override {
    kernels::launch(
        kernels::Adagrad{.param = s.param,
                         .sum = s.state[0],
                         .copy = s.copy,
                         .grad = s.grad,
                         .lr = float(args.rates.lr / (1 + double(args.step - 1) * config_.lr_decay)),
                         .eps = float(config_.eps),
                         .weight_decay = decay_of(s, args, config_),
                         .grad_scale = float(args.grad_scale)},
        stream);
  }

 private:
  config::OptimizerConfig config_;
};

class LambOptimizer final : public Optimizer {
 public:
  explicit LambOptimizer(const config::OptimizerConfig& config) : config_(config) {}

  std::vector<std::string> states() const override { return {"exp_avg", "exp_avg_sq"}; }
  bool prepares() const override { return true; }

  void prepare(const UpdateSlice& s, const StepArgs& args, Tensor squares, Stream& stream) const override {
    kernels::launch(kernels::LambMoments{.m = s.state[0],
                                         .v = s.state[1],
                                         .squares = squares,
                                         .param = s.param,
                                         .grad = s.grad,
                                         .beta1 = float(beta1(args)),
                                         .beta2 = float(beta2(args)),
                                         .eps = float(config_.eps),
                                         .weight_decay = decay_of(s, args, config_),
                                         .grad_scale = float(args.grad_scale)},
                    stream);
  }

  void update(const UpdateSlice& s, const StepArgs& args, Stream& stream) const override {
    const double param = std::sqrt(s.squares[0]), update = std::sqrt(s.squares[1]), t = double(args.step);
    const double trust = param > 0 && update > 0
                             ? std::max(config_.min_coeff, std::min(config_.max_coeff, param / update))
                             : 1;
    const double bias = config_.bias_correction
                            ? std::sqrt(1 - std::pow(beta2(args), t)) / (1 - std::pow(beta1(args), t))
                            : 1;
    kernels::launch(kernels::LambStep{.param = s.param,
                                      .copy = s.copy,
                                      .m = s.state[0],
                                      .v = s.state[1],
                                      .rate = float(args.rates.lr * bias * trust),
                                      .eps = float(config_.eps),
                                      .weight_decay = decay_of(s, args, config_)},
                    stream);
  }

 private:
  double beta1(const StepArgs& args) const {
    return args.rates.momentum >= 0 ? args.rates.momentum : config_.beta1;
  }
  double beta2(const StepArgs& args) const {
    return args.rates.beta2 >= 0 ? args.rates.beta2 : config_.beta2;
  }

  config::OptimizerConfig config_;
};

class OutsideOptimizer final : public Optimizer {
 public:
  explicit OutsideOptimizer(OutsideUpdate update) : outside_(std::move(update)) {
    CHECK(outside_.states.size() <= size_t(kMostStates), "an optimizer with {} states",
          outside_.states.size());
  }

  std::vector<std::string> states() const override { return outside_.states; }
  bool by_parameter() const override { return true; }

  // A CUDA stream task must not call CUDA, but the update may.
  void update(const UpdateSlice& s, const StepArgs& args, Stream& stream) const override {
    if (stream.on_cuda()) {
      if (s.param.memory() != MemoryKind::device) stream.synchronize();
      outside_.update(s, args, stream);
    } else {
      stream.enqueue([&] { outside_.update(s, args, stream); });
      stream.synchronize();
    }
    if (s.copy.defined()) kernels::launch(kernels::Cast{.y = s.copy, .x = s.param}, stream);
  }

 private:
  OutsideUpdate outside_;
};

}  // namespace

std::unique_ptr<Optimizer> outside_optimizer(OutsideUpdate update) {
  return std::make_unique<OutsideOptimizer>(std::move(update));
}

std::unique_ptr<Optimizer> make_optimizer(const config::OptimizerConfig& config) {
  switch (config.type) {
    case config::OptimizerType::adam:
    case config::OptimizerType::adamw:
      return std::make_unique<AdamOptimizer>(config);
    case config::OptimizerType::lamb:
      return std::make_unique<LambOptimizer>(config);
    case config::OptimizerType::lion:
      return std::make_unique<LionOptimizer>(config);
    case config::OptimizerType::adagrad:
      return std::make_unique<AdagradOptimizer>(config);
    case config::OptimizerType::sgd:
      return std::make_unique<SgdOptimizer>(config);
  }
  fail(Exit::internal, "optimizer {}", int(config.type));
}

}  // namespace cleave::optim
