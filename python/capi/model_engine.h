// An engine that computes a published model for a caller that has the same model in another
// language. Parameters have the names and shapes of transformers; batches are token ids and labels.
#pragma once
#include <map>
#include <memory>
#include <set>

#include "python/capi/engine.h"
#include "runtime/twin_model.h"

namespace cleave::capi {

struct ModelEngine : cleave_engine {
  ModelEngine(runtime::TwinModel its_model, comm::Communicator& world, const runtime::EngineOptions& options)
      : twin(std::move(its_model)), engine(twin.engine(world, options)), world_(world) {}

  runtime::EngineBase& base() override { return *engine; }
  void begin_step(int micros) override;
  double scale() override { return engine->scale(); }
  // Takes the losses from the engine. A step may end before all of its micro-batches were given, on
  // all ranks alike; the missing ones are computed without targets.
  runtime::StepResult finish_step(std::span<const double>, std::span<const optim::Rates> rates) override;
  // items: cleave_samples::items.
  double train_micro_batch(const Batch& batch, double items);
  std::map<std::string, std::vector<int64_t>> shapes() override;
  std::optional<monitor::ProfiledEngine> profiled() const override {
    return monitor::ProfiledEngine{engine->layer_costs(), engine->mesh(), engine->params()};
  }
  int64_t vocabulary() const override { return twin.model.vocab; }
  void take_first(int unit, Tensor value) override;
  void begin_pass(int, bool) override {}
  void end_pass() override {}
  // Returns true if a rank keeps only parts of the unit's parameters; then acquire() is collective.
  bool gathers(int unit) override;
  std::vector<void*> acquire(int unit) override;
  void release(int unit) override { gathered_.erase(unit); }
  bool lies_turned(const void* data) const override { return turned_.contains(data); }
  std::vector<float> gradient(const std::string& name) override;
  void write_gradient(const std::string& name, std::span<const float> whole) override;
  std::vector<float> parameter(const std::string& name, int kind) override;
  void write_parameter(const std::string& name, std::span<float> whole, int kind) override;
  std::vector<float> own_master(const std::string& name) override;
  runtime::SavedTraining opened(const std::string& folder, const std::string& tag) override {
    return twin.opened(folder, tag);
  }
  std::string kept(const std::string& client) override { return twin.kept(client); }

  const runtime::TwinModel twin;
  const std::unique_ptr<runtime::Engine> engine;

 private:
  const std::vector<std::string>& names_of(int unit) const;

  comm::Communicator& world_;
  int64_t micros_ = 0;              // given in the current step
  double items_ = 0;                // cleave_samples::items of them
  std::set<const void*> turned_;    // addresses of matrices in the engine's order
  std::map<int, Buffer> gathered_;  // by unit
};

}  // namespace cleave::capi
